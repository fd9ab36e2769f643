"""LaTeX that grading knows: commands with their meaning for the lexer, spellings that are equal, characters.

Tables only. A command or character that is in none of them makes an answer unreadable.
"""

from lark.grading.strict.vocabulary import first_of_line, word_set

LITERAL = r"0(?:[xX][0-9A-Fa-f]+|[bB][01]+|[oO][0-7]+)"
"""A whole number as programs write it: hexadecimal, binary or octal."""
GREEK = word_set(
    r"\alpha \beta \gamma \delta \epsilon \varepsilon \zeta \eta \theta \vartheta \iota \kappa \lambda \mu"
    r" \nu \xi \rho \sigma \tau \upsilon \phi \varphi \chi \psi \omega"
    r" \Gamma \Delta \Theta \Lambda \Xi \Pi \Sigma \Phi \Psi \Omega"
)
FUNCTIONS = word_set(
    r"\sin \cos \tan \cot \sec \csc \arcsin \arccos \arctan \sinh \cosh \tanh"
    r" \log \ln \exp \max \min \gcd \lcm"
)
BOUND = word_set(r"\sum \prod \int \lim")
"""Commands with a bound variable."""
ARGUMENT_COUNTS = {r"\frac": 2, r"\binom": 2, r"\sqrt": 1}
"""Number of arguments that a command takes."""
RELATIONS = frozenset({"<", ">", r"\le", r"\ge", r"\ne"})
COMMANDS = frozenset(
    GREEK | FUNCTIONS | BOUND | ARGUMENT_COUNTS.keys() | RELATIONS
    | word_set(r"\pi \infty \cdot \times \div \pm \mp \circ \approx \in \cup \cap \setminus \emptyset \to")
    | word_set(r"\lfloor \rfloor \lceil \rceil \angle \triangle \overline \vec \{ \} \% \$ \\")
    | word_set(r"\pounds \euro \yen \cent \langle \rangle \mid")
)  # fmt: skip
CANONICAL = first_of_line(
    r"""
    \frac \dfrac \tfrac \cfrac
    \binom \dbinom \tbinom
    \le \leq \leqslant \leqq
    \ge \geq \geqslant \geqq
    \ne \neq
    < \lt
    > \gt
    \emptyset \varnothing
    \{ \lbrace
    \} \rbrace
    [ \lbrack
    ] \rbrack
    | \lvert \rvert \vert \|
    * \ast
    : \colon
    ^\circ \degree
    \$ \textdollar
    \% %
    \angle \measuredangle
    \setminus \backslash
    \overline \bar
    \vec \overrightarrow
    \neg \lnot
    \mathbf \bold
    \cup \bigcup
    \cap \bigcap
    \text{and} \& \wedge \land
    \text{or} \vee \lor
    """
)
"""The spelling that equal tokens share: the first one of a line, for all that are in it."""
LAYOUT_COMMANDS = word_set(
    r"\left \right \big \Big \bigl \bigr \Bigl \Bigr \bigg \Bigg"
    r" \displaystyle \textstyle \scriptstyle \limits \quad \qquad \enspace \thinspace \, \; \: \! \( \) \[ \]"
    r" \bf \rm \it \tiny \scriptsize \footnotesize \small \normalsize \large \Large \LARGE \huge \Huge"
) | {"\\ ", "\\\n"}
"""Commands that a reader does not see."""
TEXT_COMMANDS = word_set(
    r"\text \textrm \textbf \textit \textnormal \textsf \texttt \textup \mbox \hbox \emph"
    r" \mathrm \mathsf \mathit \mathtt \operatorname"
)
"""Commands whose argument is words."""
WRAPPERS = word_set(r"\mathbf \bm \boldsymbol \mathnormal \underline \boxed \fbox")
"""Commands whose argument is read as if it stood alone."""
OPENING = frozenset({"(", "[", r"\{", r"\langle"})
CLOSING = frozenset({")", "]", r"\}", r"\rangle"})
_LOOKALIKES = first_of_line(
    r"""
    - − –
    \times ×
    \cdot · ⋅
    \div ÷
    \pm ±
    \le ≤
    \ge ≥
    \ne ≠
    \approx ≈
    \sqrt √
    \infty ∞
    \in ∈
    \cup ∪
    \cap ∩
    \emptyset ∅
    \langle ⟨
    \rangle ⟩
    \pi π
    \theta θ
    \alpha α
    \beta β
    \angle ∠
    ^\circ °
    ' ′
    \frac{1}{2} ½
    \frac{1}{3} ⅓
    \frac{2}{3} ⅔
    \frac{1}{4} ¼
    \frac{3}{4} ¾
    ^{2} ²
    ^{3} ³
    _{0} ₀
    _{1} ₁
    _{2} ₂
    _{3} ₃
    \pounds £
    \euro €
    \yen ¥
    \cent ¢
    """
)
CHARACTERS = str.maketrans(
    # With a space, so that no letter after a command becomes a part of its name.
    {character: f"{latex} " for character, latex in _LOOKALIKES.items() if not character.isascii()}
    | dict.fromkeys("\u00a0\u2009\u202f", " ")
)
"""Characters that look the same as a LaTeX notation. All others that are not ASCII are unreadable."""
