"""Availability traces as no one records them: of each format, with wrong times, counts, nodes and prices."""

import json
from random import Random

NUMBERS = (
    *("0", "-0", "1", "-1", "2", "60000", "600", "1e-300", "5e-324", "1e300", "1e308", "1e999", "9" * 400),
    *("9" * 5000, "NaN", "Infinity", "-Infinity", "nan", "inf", "1_0", "0x1", " 5 ", "٣", "1e5", "true"),
)
WORDS = ("", "null", "[]", "{}", '""', '"x"', "[[]]", '{"a": 1}', "add", "a,b", "\x00", "\ud800", "größe")
ENDINGS = ("json", "csv", "txt", "jsonl", "JSON", "yaml", "")
JSON_WINDOW = """{"metadata": {"gap_seconds": 600, "meaning": "obtainable"},
 "data": [1, 0, 1, 1, 0], "prices": [1, 1, 0.5, 1, 2.5]}"""
_TEXTS = {
    "json": (JSON_WINDOW, '{"metadata": {"gap_seconds": 300.0}, "data": [0, 3, 16]}'),
    "csv": ("0,add,a\n60000,add,b\n120000,remove,a\n", "0,1\n600000,0\n1200000,2\n"),
    "jsonl": (
        '[0, "add", {"nodes": ["a", "b"], "duration": 60000}]\n[60000, "remove", {"nodes": ["a"]}]\n',
        '[0, "add", {"nodes": ["a"]}]\n[70000, "no-op", {}]\n[80000, "migration", {"nodes": []}]\n',
    ),
}


def hostile_trace(random: Random) -> tuple[str, str]:
    """Return a file name and a text: a small trace with a few changes, sometimes of another format."""
    ending = random.choice(("json", "csv", "jsonl"))
    text = _drawn(random, ending) if random.random() < 0.3 else random.choice(_TEXTS[ending])
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        text = _change(random, text)
    if random.random() < 0.05:
        ending = random.choice(ENDINGS)
    return f"t.{ending}", text.encode("utf-8", "replace").decode()


def _drawn(random: Random, ending: str) -> str:
    """Return a trace of numbers that were drawn one by one."""
    size = random.choice((1, 2, 10, 300))
    number = (lambda: random.choice(NUMBERS)) if random.random() < 0.5 else (lambda: str(random.randrange(9)))
    times = sorted(random.choice((0, 1, 1e3, 1e7, 1e12)) * random.random() for _ in range(size))
    if ending == "json":
        values = ", ".join(number() for _ in range(size))
        prices = f', "prices": [{values}]' if random.random() < 0.5 else ""
        counts = ", ".join(number() for _ in range(size))
        gap = random.choice(NUMBERS)
        return f'{{"metadata": {{"gap_seconds": {gap}}}, "data": [{counts}]{prices}}}'
    if ending == "csv":
        return "\n".join(f"{time},{number()}" for time in times)
    events = ("add", "remove", "no-op", "migration", "x")
    return "\n".join(
        json.dumps([time, random.choice(events), {"nodes": random.sample("abcdef", 2), "duration": time}])
        for time in times
    )


def _change(random: Random, text: str) -> str:
    place = random.randrange(len(text) + 1)
    word = random.choice((*NUMBERS, *WORDS, *',:[]{}"\n-.e '))
    match random.randrange(5):
        case 0:
            return text[:place] + word + text[place:]
        case 1:
            return text[:place] + text[place + random.randrange(1, 4) :]
        case 2:
            lines = text.split("\n")
            lines.insert(random.randrange(len(lines) + 1), random.choice(lines))
            return "\n".join(lines)
        case 3:
            return _with_other_number(random, text)
        case _:
            return (
                text[:place] if random.random() < 0.2 else text.replace(random.choice("0123456789"), word, 1)
            )


def _with_other_number(random: Random, text: str) -> str:
    """Replace one run of digits."""
    starts = [i for i, c in enumerate(text) if c.isdigit() and not text[i - 1 : i].isdigit()]
    if not starts:
        return text
    start = random.choice(starts)
    end = next((i for i in range(start, len(text)) if not text[i].isdigit()), len(text))
    return text[:start] + random.choice(NUMBERS) + text[end:]
