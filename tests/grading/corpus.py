"""Answers in a box that try to cheat the verify grader, and honest ones that a careful marker accepts, by gold answer."""

from collections.abc import Iterator

from lark.grading.answers import AnswerFormat

Case = tuple[str, str, AnswerFormat]
"""A prediction as it is in the box, the gold answer, and its format."""

CHEATS: dict[str, tuple[str, ...]] = {
    "5": (
        # denial and hedging, in a text or bare
        r"5 \text{ is not the answer}", r"5\text{ is wrong, it is 6}", r"5 \text{ is wrong}", r"5 \text{ (wrong)}",
        r"5 \text{ maybe}", r"5 \text{ or so}", r"5 \text{ perhaps}", r"5\text{?}", r"5?", r"5 \text{ or 6}", r"5 \text{ not}",
        r"5 \text{ probably}", r"5 \text{ if lucky}", r"\text{not } 5", r"\text{maybe } 5", r"\text{either } 5 \text{ or } 6",
        r"\text{anything but } 5", r"\text{It is not } 5", r"\text{wrong: } 5", r"\text{less than } 5", r"\text{at most } 5",
        r"\text{more than } 5", r"\text{about } 5", r"\text{The answer is not } 5", r"\text{I guess } 5", "not 5", "maybe 5",
        "5 is wrong", "5 maybe", "5 or 6", "5, maybe 6", "5 (or 6)", "5 (not 6)", "5 (6)", "5 [6]", "5 but not really", "5 ish",
        r"5\text{ish}", r"5 \text{ false}", r"5 \text{ invalid}", r"5 \text{ nope}", r"5 \text{ guesses it is wrong}",
        r"5\mbox{ is not it}", r"5\textbf{ no}", r"5\mathrm{ wrong}", r"5\text{ isn't it}", r"5\text{ actually six}",
        r"5 \text{ fails}", r"5 \text{ unless}", r"5 \text{ equals six}", r"5 \text{ plus one}", r"5 \text{ minus one}",
        r"5 \text{ is}", r"5\text{ apples or pears}", r"5 \text{ apples and 6 pears}", r"5 \text{ cm, or 6 cm}",
        # numbers in words
        r"5 \text{ million}", r"5 \text{ hundred}", r"5 \text{ and a half}", r"5 \text{ squared}", r"5 \text{ thousand people}",
        r"\text{negative } 5", r"\text{minus } 5", r"\text{twice } 5", r"\text{half of } 5",
        # equations that contradict themselves, or say something else
        "6=5", "5=6", "no=5", "y6=5", "not=5", "wrong=5", "6x=5", "x=5=6", "x=6=5", "5=x=6", "x-5=0", "2x=5", "x+1=5", "0=5",
        r"\text{no}=5", r"\text{wrong}=5", r"\text{not } x=5", r"\text{wrong answer} = 5", "x=6, y=5", "x=5, x=6", "x==5+1",
        r"6 \approx 5", r"5 \approx 6", r"5.4 \approx 5", "nope = 5", "x^2=5", "5=5=6", "x=y=6=5", "1+1=5",
        # other relations
        r"x \neq 5", r"x < 5", r"x \ge 5", r"\neq 5", r"<5", r"\le 5", r"\approx 5", r"\sim 5", r"x \equiv 5 \pmod 7", r"5<6",
        r"\not= 5", r"5 \to 6", r"5 \rightarrow 6", r"5 \Rightarrow 6", r"6 \to 5", r"6 \Rightarrow 5", r"5 \mid 10",
        r"x \in \{5, 6\}", r"5 \le x \le 6", r"5 \vee 6", r"5 \lor 6", r"\neg 5", r"\lnot 5", r"5 \ne 5", r"5 \cup 6",
        # two answers
        "5,6", "5;6", "5 6", r"5 \quad 6", r"5\ 6", r"5~6", "5/6", "5|6", "5&6", r"5\\6", "5, 5", r"\{5,5\}", r"\{5, 6\}", "(5,6)",
        "5 and 6", r"5 \text{ and } 6", "5:6", r"\pm 5", r"5 \pm 1", r"\mp 5", "5 to 6", "5-6", "[5,6]", "5...6", "5..6", "5 -> 6",
        r"5 \text{ , } 6", r"\begin{pmatrix} 5 \\ 6 \end{pmatrix}", r"5 \text{ } 6", r"5\text{6}", r"5 \text{six}", "{5}{6}",
        # digits and bases
        "5_6", "5_{10}", "5_{wrong}", "5^*", "5'", "5^6", "5^{6}", "05,", "5!", "5.5", "5.0000001", "4.99999999", "0.5", "50", "5e1",
        "5%6", r"5\%6", r"5^\circ 6", r"5\$6", r"\$5\$6", "5.6", "0x5", "5k", "5i", "5x", r"5\pi", r"5\infty", r"5+\infty", "5 000",
        # marks and layouts that a reader sees and a parser skips
        r"\cancel{5}", r"\cancel{5} 6", r"\sout{5}", r"\xcancel{5}", r"\not 5", r"5\phantom{6}", r"\phantom{5}", r"\color{white}5",
        r"5\hspace{6cm}", r"\overset{6}{5}", r"\underset{6}{5}", r"\overline{5}", r"\underline{6}5", r"5\rule{6}{6}", r"5 % 6",
        r"5\label{6}", r"5\tag{6}", r"\hat{5}", r"5^{\text{wrong}}", r"5_{\text{or }6}", r"5\footnote{not}", r"5\unknown", r"\def\x{5}",
        r"\begin{cases} 5 \\ 6 \end{cases}", r"\text{5 or 6}", r"\text{5 is wrong}", r"5\textcolor{red}{6}", r"\stackrel{6}{5}",
        # look-alikes
        "\uff15", "\u0665", "\u09eb", "5\u200b6", "5\u0336", "\u2464", "5\u20dd", "\u202e5", "5\u0338", "\U0001d7d3\u200b",
        "\u03c7\u200b=5", "\u03a7\u0336=5",
        # broken and empty mathematics
        "5+", "5)", "(5", "5}{6", "5^", "5_", r"\frac{5}{}", "()5", "5()", "5-", "5*", "5=", "=5=", "==5", "x==5", "5..", "5,,", ",5",
        "||5", "5||", r"\frac{5}{1}{6}", r"5\left(", "5 = ?", "? = 5", r"\sqrt{}5", "5**", "[5", "5 5 5",
        # values without meaning
        r"\frac{5}{0}", r"5\cdot\frac{0}{0}", r"\infty", r"\lim_{x\to 0} \frac1x", r"\log 0", r"5+\frac{1}{\infty}",
    ),
    "-2": ("2", r"\text{-2 or 2}", r"\pm 2", "|-2|", "--2", "- -2", r"-2 \text{ degrees below or above}", "x=2", "~2", r"\sim 2", "(2)"),
    "3R^2": ("3r^2", "3 r^{2}", "3R^2r^0/2", "3Rr", "3R_2", "3R2", "3 R^2 or 3r^2", "3R^2=3r^2", r"3\mathcal{R}", "3R^{2}+r-r^1/2"),
    "2k": ("2K", "2", "k", "2k or 2", r"2\text{ k}", r"2 \text{ kilos}", "2k_1", "2k=0", "2k<3", r"2\kappa"),
    "p - q": ("P-Q", "q-p", "p-q, q-p", "p=q", "p-q=1", r"p - q \text{ or } q - p", r"\pm(p-q)", "|p-q|"),
    r"\pi": ("3.14", "22/7", r"\Pi", "p", r"\pi \approx 3", r"\pi \text{ or } 3", "pi or 3", r"\pi=3", r"\pi=3.14", r"\pi_2"),
    r"\infty": (r"\infty+5", r"5\infty", r"-\infty", r"\infty^2", r"\pm\infty", r"\infty-\infty", r"\infty!", "1/0", r"2^{\infty}",
                r"\infty + \infty", r"\sqrt{\infty}", r"\sum_{n=1}^{\infty} 1", r"\infty \text{ or } 5", r"e^{\infty}"),
    r"\emptyset": ("3<5", "5<3", "0", r"\{0\}", r"\{\emptyset\}", "x<x", "x^2<0", "1=2", r"\{\}, 5", "[1,0]", "(1,1)", r"\text{not empty}",
                   "(2,1)", "false", "3=5", r"x \ne x"),
    "0": ("x-5=0", "x=0+1", "5=0", "x^2=0", "0x", r"0 \text{ is wrong}", "1-1=2", r"\emptyset", "o", "O", "()", "none", "x-x=1", "y-x=0x+1"),
    "x=5": ("x-5=0", "2x=10", "y=5", "x=6", "x=5 or x=6", "x=5, y=6", "x=5=6", "x<5", "x^2=25", "5x=x", "X=5", "x-5=x-5", "x+0y=5",
            "x/5=1", "0=5-x", r"x=5 \text{ is wrong}"),
    "1,2": ("1,2,2", r"\{1,2,2\}", "(1,2,2)", "1,1,2", "1,3", "1", "2", "1,2,3", "[1,2]", "1 or 2 or 3", "1,2 or 3", "x=1,y=3", "12",
            r"1,2 \text{ are wrong}", "1.2", "1, not 2", r"1 \text{ but not } 2", "1<2", "1:2", "{1}{2}"),
    r"\{1,2\}": (r"\{1,2,2\}", "(1,2)", "[1,2]", r"\{1\}", r"\{1,2,3\}", r"\{1\}\cup\{3\}", r"\{1,2\} \text{ or } \{1\}", r"\{1,\{2\}\}"),
    "(1,2)": (r"\{1,2\}", "[1,2]", "(2,1)", "(1,2,2)", "(1,2), (2,1)", "(1,2) or (2,1)", "1:2", "[1,2)", r"\{1,2,2\}", "(1)(2)", "1+2"),
    "(-\\infty, 2) \\cup (3, \\infty)": (
        r"(-\infty, 2) \cap (3, \infty)", r"(-\infty, 2] \cup (3, \infty)", r"(-\infty, 2), (3, \infty)", r"x<2 \text{ and } x>3",
        r"(-\infty, \infty)", r"(-\infty, 2) \cup (3, \infty) \text{ or not}", r"x<2 \text{ or } x>3 \text{ or } x=2",
    ),
    "0.333333": ("1/3", r"\frac{1}{3}", r"0.\overline{3}", "0.3333333", "0.333334", "0.33", r"\frac13 \approx 0.333333"),
    r"\frac{1}{3}": ("0.333", "0.33", "0.3", r"\frac13 \text{ or } 0.3", r"\frac{1}{3}=0.4", r"\frac{3}{1}", r"\frac{1}{3}\%\text{ or so}",
                     "1:3:1", "1/3/1/2", r"\frac{1}{3} \approx 0.5", r"\frac{1}{3}_{2}"),
    "4210_{5}": ("4210_6", "4210_{10}", "4210_{5_6}", "4210_{5}, 4210_6", r"4210_{5} \text{ or } 4210", "555", "4210^5"),
    r"90^\circ": (r"90\%", r"\$90", r"90 \text{ radians}", r"90^2", r"90^\circ \text{ or } 60^\circ", r"90 \text{ percent}", r"90^{\circ\circ}",
                  r"90^\circ\text{ not}", r"\frac{\pi}{2}\text{ or } 90"),
    r"15\mbox{ cm}^2": (r"15\text{ cm}", r"15 \text{ m}^2", r"15 \text{ kg}", r"\$15", r"15\text{ cm}^3", "15cm or 16cm", r"15\text{ cm}^2\text{ no}"),
    r"\$18.90": (r"18.90\%", "18.9 or 19", r"18.90 \text{ cents}", r"\$18.90 \text{ or more}", r"\$18.91", r"18.90^\circ"),
    r"\text{Evelyn}": (r"\text{Evelyn or Debra}", r"\text{not Evelyn}", r"\text{Evelyn?}", "Eve", r"\text{Evelyn, Debra}", r"\text{Debra}",
                       r"\text{Evelyn} \ne \text{Evelyn}", r"\text{Evelyn is not the fastest}", "Evelyn = Debra", "Evelin",
                       "\u0415velyn", r"\text{Evelyn}\text{ lost}", "5", "Evelyn 5"),
    r"\text{even}": (r"\text{odd}", r"\text{not even}", r"\text{even or odd}", r"\text{even} \text{ and odd}", r"\text{uneven}", "odd = even",
                     r"\text{neither even nor odd}", r"\text{odd} \to \text{even}", "even?", r"\text{maybe even}", "even (odd)"),
    r"\text{(C)}": (r"\text{(B)}", r"\text{(C) or (D)}", "(B)(C)", r"\text{not C}", r"\text{(C)}?", "C, D", "C = D", r"\text{(C)} \to \text{(D)}"),
    r"y = 2x + 3": ("y=2x", "2x-3", "y=2x+3=0", "y=3x+2", "x=2y+3", "y=2x+3 or y=2x", "Y=2X+3", r"y \ne 2x+3", r"y<2x+3", "2x+3=0", "z=2x+3",
                    r"y = 2x + 3 \text{ is wrong}", "0=0", "y=y"),
    "5x - 7y + 11z + 4 = 0": ("5x-7y+11z+4", "0=0", "5x-7y+11z=4", "5x - 7y + 11z + 4 = 0 = 1", "0", "5x-7y+11z+4<0", "5X-7Y+11Z+4=0"),
    r"x \in [-2,7]": ("(-2,7)", "-2<x<7", r"x \notin [-2,7]", "[-2,7), 7", r"-2 \le x \le 7 \text{ or not}", r"\{-2,7\}", "-2,7", r"y\in[-2,7]",
                      r"x \ge -2", "[-2,7]=[0,1]", "[7,-2]"),
    "1 - 12i": ("1+12i", r"1 \pm 12i", "1-12I", "1-12j", "1-12", "12i-1", "1-12i, 1+12i", "1-12i=0"),
    r"1 \pm \sqrt{19}": (r"1+\sqrt{19}", r"1 \pm 19", r"-1 \pm \sqrt{19}", r"1 \pm \sqrt{19}, 1", r"1+\sqrt{19}, 1+\sqrt{19}", r"1 \mp 2\sqrt{19}"),
    r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}": (
        r"\begin{pmatrix} -1 & 0 \\ 0 & 1 \end{pmatrix}", r"\begin{pmatrix} -1 & 0 & 0 & -1 \end{pmatrix}", r"-I \text{ or } I", "-1",
        r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix} \text{ or } I", r"\begin{vmatrix} -1 & 0 \\ 0 & -1 \end{vmatrix}", "(-1,0,0,-1)",
    ),
    "10,\\!080": ("10, 080", "10 or 80", "10.080", "1080", "10,80", "10,080 or 80", "100,80"),
    "142.0": ("142 or 143", r"142\text{ or }143", "142, 143", "143=142", "1 42", "14 2", "1,42", "142.1", r"1\,42", r"142^\circ\text{ or }0", "1%42",
              r"1\%42", r"1^\circ 42", r"14\$2", "1{}42x", "142_{8}", "(142,0)", r"142 \text{ mod 5}", r"142 \bmod 5", r"142 \pmod{1000}"),
}  # fmt: skip

CHOICE_CHEATS: dict[str, tuple[str, ...]] = {
    "B": (
        "B)C)D)", "B: or maybe C", "B. Actually C", "B) \u2192 C)", r"B) \to C", r"B \rightarrow C", "B or C", "B, C", "B) C", "B/C", "B & C",
        "BC", "B C", "(B)(C)", "B; D", "A, B", "not B", "B not", "B) not this one", "B? C?", "B?", "B: wrong", "B. is wrong", "B) no, C",
        "B. Wait, D", "B) but D is right", "B: the answer is C", "B) see C", "B. C is correct", "B. C is the right one", "B) or the last one",
        "B) and also D", "B - C", "B|C", "B = C", "B -> C", "B. On second thought, A", "B: option C", "B. I mean C", "B) rather c",
        "B) maybe", "B. Probably", "B: not sure", "B) (C)", "B) [C]", "B) \\textbf{C}", "B.C.D", "B:C", "B)\nC)", "B.\n\nD.", "A B C D", "ABCD",
        "\u0412", "\uff22", "8", "\u00df", "\U0001d401", "B\u0336", "\u24b7", "B) " + "x" * 2000 + " or C", "B) x" + " " * 1500 + "C)",
        "all but B", "either B", "B unless C", "A = B", r"\cancel{B}", r"\text{B or C}", r"\text{B} \text{ or } \text{C}", r"\text{B}, \text{C}",
        "B) switch to D", "B: incorrect", "B: this is false", "B, possibly D", "B) C or D", "B. Hmm, A", "B. No: C", "B) instead of C: C", "none", "",
        "B) C) D)", "(B) or (C)", "B and C", "B: A", "B. a", "B) d)", "B: ignore this, C", "C (not B)", "C", "B. Not B", "B) not B",
    ),
}  # fmt: skip

HONEST: dict[str, tuple[str, ...]] = {
    "5": (
        "5", " 5 ", "5.", "5.0", "+5", "05", "$5$", r"\(5\)", "{5}", "(5)", r"\displaystyle 5", r"\textbf{5}", r"\mathbf{5}", r"\text{5}",
        r"\boxed{5}", r"\fbox{5}", "x=5", "x = 5", "5 = x", r"x_1 = 5", r"n = 5", r"f(2) = 5", r"AB = 5", r"\angle ABC = 5", r"P(A)=5",
        r"\theta = 5", r"|AB| = 5", r"\overline{AB} = 5", r"S_{10} = 5", r"a_{n+1} = 5", r"\text{Area} = 5", r"\text{Total} = 5", "m+n=5",
        r"m + n = 5", r"a+b+c = 5", "x = 10/2 = 5", "2+3=5", r"\frac{10}{2}", r"\frac{10}{2} = 5", r"\sqrt{25}", "10/2", r"2 \cdot 2 + 1",
        r"5\text{ apples}", r"5 \text{ apples}", r"5\text{ cm}", r"5 \text{ cm}^2", r"5 \mathrm{cm}", r"5\,\mathrm{cm}", r"5\ \text{m/s}",
        r"5 \text{ square units}", r"5 \text{ units}^2", r"5 \text{ years old}", r"5 \text{ miles per hour}", r"5 \text{ people}", r"5 \text{ ways}",
        r"5 \text{ different colors}", r"5 \text{ pairs of socks}", "5 apples", "5 cm", "5cm", "5 minutes", r"\$5", "$5", "5 dollars", r"5 \text{ dollars}",
        r"5\%", "5%", r"5 \text{ percent}", r"5^\circ", r"5^{\circ}", r"5 \text{ degrees}", "5\u00b0", r"x = 5 \text{ cm}", r"\text{The answer is } 5",
        r"\text{Answer: } 5", "The answer is 5", "Answer: 5", r"\text{The final answer is } 5.", r"\left(5\right)", r"\;5\;", "5\\,", "\n5\n", r"\bf 5", r"\text{5 cm}",
        r"\text{5 apples}", r"\log_2 32", "5 + 0i", r"\binom{5}{1}", r"\lfloor 5.5 \rfloor", r"|{-5}|", r"x=5\text{.}", r"\mathrm{x}=5", "x\u2081 = 5",
        r"\text{five}" if False else "5.00", r"{\displaystyle 5}", r"5 \text{ hours}", r"5\text{ hr}", r"5 \text{ in.}", r"\text{Distance} = 5 \text{ km}",
    ),
    "-2": ("-2", "\u22122", "- 2", r"x=-2", r"-\frac{4}{2}", r"-2.0", r"\text{Answer: } -2", "(-2)", "\u20132", r"-\sqrt{4}", r"k = -2"),
    "3R^2": ("3R^{2}", "3 R^2", r"3 \cdot R^2", "R^2 \\cdot 3", "A = 3R^2", "3RR", r"3R \times R", "3*R^2", "3R\u00b2"),
    "p - q": ("p-q", "-q+p", "-(q-p)", r"\left(p-q\right)", "x = p - q"),
    r"\pi": ("\u03c0", r"\frac{2\pi}{2}", "3.14159265", r"\theta = \pi", r"\pi \text{ radians}", r"1\pi", r"\pi \text{ cm}^2"),
    r"\infty": (r"+\infty", "\u221e", r"x = \infty", r"\text{infinity}"),
    r"\emptyset": (r"\varnothing", r"\{\}", "\u2205", r"\{ \}", r"x \in \emptyset"),
    "0": ("0.0", "-0", "x=0", r"\frac{0}{5}", "1-1", r"0^\circ", r"\$0"),
    "x=5": ("5", "x = 5", "5=x", r"x=\frac{10}{2}", "x = 5.0", r"\text{x = 5}", r"x = \frac{10}{2} = 5"),
    "1,2": ("2,1", "1, 2", r"\{1,2\}", r"1 \text{ and } 2", r"1 \text{ or } 2", "1 and 2", "x=1, x=2", "x = 1 or x = 2", "x=1,2", "1; 2", r"x_1 = 1, x_2 = 2",
            r"x \in \{1, 2\}", r"1,\ 2", r"x=1 \text{ or } x=2", r"\frac22, 2"),
    r"\{1,2\}": (r"\{2,1\}", r"\left\{1, 2\right\}", "1,2", r"S = \{1,2\}", r"\lbrace 1, 2 \rbrace", r"\{1.0, 2\}"),
    "(1,2)": (r"\left(1, 2\right)", "(1, 2)", "(x,y) = (1,2)", "(1.0,2)", r"(\frac22, 2)", "P = (1,2)", r"\langle 1, 2 \rangle" if False else "( 1 , 2 )"),
    "(-\\infty, 2) \\cup (3, \\infty)": (r"(3,\infty) \cup (-\infty,2)", r"x<2 \text{ or } x>3", r"x \in (-\infty,2)\cup(3,\infty)", r"x > 3 \text{ or } x < 2",
                                         r"\left(-\infty, 2\right) \cup \left(3, +\infty\right)", "x < 2 or x > 3", "(\u2212\u221e, 2) \u222a (3, \u221e)"),
    "0.333333": ("0.333333", ".333333", "0.3333330", r"\frac{333333}{1000000}", "x = 0.333333"),
    r"\frac{1}{3}": (r"\frac13", r"\dfrac{1}{3}", "1/3", r"\frac{2}{6}", "0.333333", r"0.\overline{3}", r"x = \tfrac13", r"\frac{1}{3} \approx 0.333", r"1 / 3",
                     r"\left(\frac{1}{3}\right)", r"\frac{1}{3} = 0.333333", r"3^{-1}", "P = 1/3", r"\frac{1}{3} \text{ mile}", "\u2153"),
    "4210_{5}": ("4210_5", "4210", r"4210_{\text{5}}", r"4210_{\text{five}}", "n = 4210_5", r"\text{4210}_5"),
    r"90^\circ": ("90", "90\u00b0", r"90 \text{ degrees}", r"90^{\circ}", r"\angle A = 90^\circ", r"x = 90", r"90 ^ \circ"),
    r"15\mbox{ cm}^2": ("15", r"15\text{ cm}^2", r"15 \text{ cm}^{2}", r"15 \text{ square centimeters}", "15 cm^2", r"15\,\mathrm{cm}^2", r"15 \text{ sq cm}", "A = 15",
                        r"15 \text{ units}^2", r"15 \text{ cm\textsuperscript{2}}" if False else r"15\text{cm}^2", "15 cm\u00b2"),
    r"\$18.90": ("18.90", "18.9", r"\$18.9", "$18.90", r"18.90 \text{ dollars}", r"\text{\$18.90}", r"\$ 18.90", r"18.90\text{ USD}"),
    r"\text{Evelyn}": ("Evelyn", r"\text{Evelyn.}", r"\text{ Evelyn }", r"\textbf{Evelyn}", r"\mathrm{Evelyn}", "evelyn", r"\text{The answer is Evelyn}"),
    r"\text{even}": ("even", r"\text{Even}", r"\textit{even}", r"\mbox{even}", "Even."),
    r"\text{(C)}": ("C", "(C)", r"\text{C}", r"\textbf{(C)}", r"\mathrm{(C)}", "(c)", r"\text{(C) }", r"(\text{C})"),
    r"y = 2x + 3": ("y=2x+3", "2x+3", "y = 3+2x", "3+2x=y", "y-2x=3", "2x - y + 3 = 0", r"f(x) = 2x+3" if False else "y = 2(x+1)+1"),
    "5x - 7y + 11z + 4 = 0": ("-5x+7y-11z-4=0", "5x-7y+11z=-4", "10x-14y+22z+8=0", "0=5x-7y+11z+4"),
    r"x \in [-2,7]": ("[-2,7]", r"-2 \le x \le 7", r"-2\leq x\leq 7", r"\left[-2, 7\right]", r"7 \ge x \ge -2", "\u22122 \u2264 x \u2264 7"),
    "1 - 12i": ("1-12i", "-12i+1", r"1 - 12 \cdot i", "z = 1-12i", r"1-12\mathrm{i}"),
    r"1 \pm \sqrt{19}": (r"1+\sqrt{19}, 1-\sqrt{19}", r"x = 1 \pm \sqrt{19}", r"1-\sqrt{19} \text{ and } 1+\sqrt{19}", r"\{1\pm\sqrt{19}\}", r"\frac{2 \pm 2\sqrt{19}}{2}"),
    r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}": (r"\begin{bmatrix} -1 & 0 \\ 0 & -1 \end{bmatrix}", r"A = \begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}",
                                                        r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \\ \end{pmatrix}" if False else r"\left(\begin{array}{cc} -1 & 0 \\ 0 & -1 \end{array}\right)"),
    "10,\\!080": ("10080", "10,080", "10{,}080", r"10\,080", "10 080", "10,\\! 080", r"10080 \text{ ways}", "n=10,080"),
    "142.0": ("142", "142.", "142.00", r"142\text{ degrees}", "x=142", r"m+n = 142", "$142$", r"142 \text{ square units}", "+142", "0142"),
    "14 \\text{ cm}": ("14", r"14\text{cm}", "14 cm", r"14 \text{ centimeters}", "0.14 \\text{ m}" if False else "14.0"),
}  # fmt: skip

HONEST_CHOICES: dict[str, tuple[str, ...]] = {
    "B": (
        "B", "b", "(B)", "B.", "B)", "B:", r"\text{B}", r"\text{(B)}", r"\textbf{(B)}", r"\mathrm{B}", "$B$", "{B}", r"\mathbf{B}", "B) 5", r"B) \frac{1}{2}",
        "B. 5 cm", "B: because", "B) (R)-2-bromobutane", "B) vitamin C", "B) K", "B. C is larger", "B) No reaction", "B) not enough information", "B) 5 or 6",
        "B) A polygenic risk score", "B) The reaction does not proceed", r"\text{B) } 5", "Option B", "Answer: B", "The answer is B", "(B) 12", "B) point A",
        "B) C-H bond", "B) (E)-but-2-ene", "B) hepatitis A", "[B]", "B) 1, 2 and 3", r"\boxed{B}", "(b)", "B) None of the above",
    ),
}  # fmt: skip


def cases(table: dict[str, tuple[str, ...]], answer_format: AnswerFormat = AnswerFormat.FREE_FORM) -> Iterator[Case]:
    for gold, predictions in table.items():
        for prediction in dict.fromkeys(predictions):
            yield prediction, gold, answer_format
