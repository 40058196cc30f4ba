"""Regular expressions, EBNF and Lark grammars, choices."""

import random
from typing import Any

ATOMS = ("a", "[a-z]", "[^\\s]", "\\d", "\\w+", ".", "(ab|c)", "é", "\\u00e9", "[0-9a-fA-F]", "\\.")
REPEATS = ("", "", "*", "+", "?", "{3}", "{1,20}", "{2,}", "{1,300}", "*?")
REGEXES = (
    r"\d{4}-\d{2}-\d{2}",
    r"[A-Z][a-z]+( [A-Z][a-z]+)*",
    r"(yes|no|maybe)",
    r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}",
    r"^([01]?[0-9]{1,2}\.){3}[0-9]{1,3}$",
    r"(?:a|b)(?=c)d",
    r"\p{L}+",
)
EBNF = (
    'root ::= "yes" | "no"',
    'root ::= [a-z]+ " " root | "."',
    'root ::= expr\nexpr ::= term ("+" term)*\nterm ::= num | "(" expr ")"\nnum ::= [0-9]+',
    'root ::= "a"{2,30} tail\ntail ::= ("b" | "c")* "d"?',
    "root ::= (a | b) root | ''\na ::= [a-m]\nb ::= [n-z]",
    'root ::= TagDispatch(("<a>", x), loop_after_dispatch=true)\nx ::= "y"',
    "root ::= root root | [a-z ]",
)
LARK = (
    "start: WORD+\nWORD: /[a-z]+/\n%ignore / /",
    'start: "a" start | "b"\n',
    'start: expr\nexpr: expr "+" term | term\nterm: /[0-9]+/ | "(" expr ")"',
    'start: @json\njson: %json {"type": "object"}',
    '?start: "x"~3..7\n%import common.WS\n%ignore WS',
)
CHOICES = (["yes", "no"], ["a"] * 30, ["x" * 300, "y"], ["", "a"], ["é", "🦊"])
TEXT = {"model": "embedded", "prompt": "one", "max_tokens": 24}


def regex(dice: random.Random, depth: int = 0) -> str:
    if depth == 0 and dice.random() < 0.4:
        return dice.choice(REGEXES)
    parts = []
    for _ in range(dice.choice((1, 2, 3, 5))):
        atom = (
            f"({regex(dice, depth + 1)})"
            if depth < 2 and dice.random() < 0.2
            else dice.choice(ATOMS)
        )
        parts.append(atom + dice.choice(REPEATS))
    return ("|" if dice.random() < 0.2 else "").join(parts)


def draw(dice: random.Random) -> tuple[str, dict[str, Any]]:
    kind = dice.randrange(5)
    constraint: dict[str, Any]
    if kind <= 1:
        constraint = {"regex": regex(dice)}
    elif kind == 2:
        constraint = {"grammar": dice.choice(EBNF)}
    elif kind == 3:
        constraint = {"grammar": dice.choice(LARK)}
    else:
        constraint = {"choice": dice.choice(CHOICES)}
    if dice.random() < 0.1:
        constraint["disable_any_whitespace"] = True
    if dice.random() < 0.1:
        constraint["whitespace_pattern"] = regex(dice)
    stream = {"stream": dice.random() < 0.3, "n": dice.choice((1, 1, 3))}
    return "/v1/completions", TEXT | stream | {"structured_outputs": constraint}
