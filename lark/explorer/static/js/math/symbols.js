// Commands of LaTeX that are a single character, by kind.

const table = (text) => Object.fromEntries(text.trim().split(/\s+/).map((pair) => { const at = pair.indexOf(":"); return [pair.slice(0, at), pair.slice(at + 1)]; }));

export const LETTERS = table(`
alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ lambda:λ mu:μ nu:ν xi:ξ omicron:ο pi:π
varpi:ϖ rho:ρ varrho:ϱ sigma:σ varsigma:ς tau:τ upsilon:υ phi:ϕ varphi:φ chi:χ psi:ψ omega:ω Gamma:Γ Delta:Δ Theta:Θ Lambda:Λ Xi:Ξ Pi:Π
Sigma:Σ Upsilon:Υ Phi:Φ Psi:Ψ Omega:Ω infty:∞ partial:∂ nabla:∇ ell:ℓ hbar:ℏ Re:ℜ Im:ℑ aleph:ℵ emptyset:∅ varnothing:∅ angle:∠ triangle:△
degree:° circ:∘ bullet:∙ star:⋆ dots:… ldots:… cdots:⋯ vdots:⋮ ddots:⋱ prime:′ forall:∀ exists:∃ neg:¬ lnot:¬ top:⊤ bot:⊥ square:□ blacksquare:■
Box:□ diamond:⋄ bigtriangleup:△ clubsuit:♣ diamondsuit:♢ heartsuit:♡ spadesuit:♠ dotsb:⋯ dotsm:⋯ dotsc:… dotso:… checkmark:✓ dagger:† S:§ pounds:£ euro:€ imath:ı jmath:ȷ
`);
export const OPERATORS = table(`
times:× div:÷ cdot:⋅ pm:± mp:∓ ast:∗ leq:≤ le:≤ geq:≥ ge:≥ neq:≠ ne:≠ approx:≈ equiv:≡ sim:∼ simeq:≃ cong:≅ propto:∝ ll:≪ gg:≫ to:→ rightarrow:→
leftarrow:← Rightarrow:⇒ Leftarrow:⇐ leftrightarrow:↔ Leftrightarrow:⇔ iff:⟺ implies:⟹ impliedby:⟸ Longrightarrow:⟹ Longleftarrow:⟸ Longleftrightarrow:⟺ longleftarrow:⟵ nearrow:↗ searrow:↘ longrightarrow:⟶ mapsto:↦ uparrow:↑ downarrow:↓ in:∈ notin:∉ ni:∋
subset:⊂ subseteq:⊆ supset:⊃ supseteq:⊇ cup:∪ cap:∩ setminus:∖ land:∧ wedge:∧ lor:∨ vee:∨ oplus:⊕ otimes:⊗ perp:⊥ parallel:∥ mid:∣ nmid:∤ colon::
therefore:∴ because:∵ lt:< gt:> leqslant:⩽ geqslant:⩾ prec:≺ succ:≻ doteq:≐ triangleq:≜ coloneqq:≔ bigcirc:◯ backslash:\\ vert:| Vert:‖ lvert:| rvert:| lVert:‖ rVert:‖
langle:⟨ rangle:⟩ lfloor:⌊ rfloor:⌋ lceil:⌈ rceil:⌉ lbrace:{ rbrace:} lbrack:[ rbrack:] slash:/
`);
export const LARGE = table("sum:∑ prod:∏ coprod:∐ int:∫ iint:∬ iiint:∭ oint:∮ bigcup:⋃ bigcap:⋂ bigvee:⋁ bigwedge:⋀ bigoplus:⨁ bigotimes:⨂");
export const FUNCTIONS = new Set("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp lim limsup liminf max min sup inf det dim ker gcd lcm deg arg hom Pr mod".split(" "));
export const WITH_LIMITS = new Set(["lim", "limsup", "liminf", "max", "min", "sup", "inf", "det", "gcd", "Pr"]);
export const ACCENTS = table("hat:^ widehat:^ bar:¯ overline:¯ tilde:~ widetilde:~ vec:→ overrightarrow:→ dot:˙ ddot:¨ check:ˇ breve:˘ acute:´ grave:` overbrace:⏞");
export const UNDER = table("underline:_ underbrace:⏟");
export const SPACES = { ",": "0.17em", ":": "0.22em", ">": "0.22em", ";": "0.28em", " ": "0.25em", "\n": "0.25em", quad: "1em", qquad: "2em", "!": "-0.17em", enspace: "0.5em", thinspace: "0.17em" };
export const STYLES = { mathbb: "double-struck", mathcal: "script", mathscr: "script", mathfrak: "fraktur", mathbf: "bold", bold: "bold", boldsymbol: "bold", bm: "bold", mathrm: "normal", mathit: "italic", mathsf: "sans-serif", mathtt: "monospace", rm: "normal", bf: "bold", mathop: "normal" };
export const IGNORED = new Set(["displaystyle", "textstyle", "scriptstyle", "limits", "nolimits", "nonumber", "notag", "allowbreak", "hfill", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "biggl", "biggr", "middle", "mathstrut", "hline", "normalsize", "small", "large", "Large", "quad*"]);
export const MATRICES = { matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"], vmatrix: ["|", "|"], Vmatrix: ["‖", "‖"], smallmatrix: ["", ""], array: ["", ""], cases: ["{", ""], aligned: ["", ""], align: ["", ""], "align*": ["", ""], gather: ["", ""], "gather*": ["", ""], gathered: ["", ""], split: ["", ""], equation: ["", ""], "equation*": ["", ""] };
