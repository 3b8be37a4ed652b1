"""Random conditions over the whole grammar of Spark's SQL that a table's users write, from a seed.

What strandline understands and what it leaves to Spark are both in it: the second must never be taken for the first.
"""

from __future__ import annotations

from random import Random

NUMBERS = (
    "0",
    "1",
    "-1",
    "3",
    "7",
    "2.5",
    "-0.5",
    "100",
    "1.00",
    "9999999999",
    ".5",
    "1e1",
    "3L",
    "2.5D",
    "1.5BD",
    "2S",
)
TEXTS = ("", "a", "A", "ab", "abc", "b", "a_c", "a%c", "x'y", "é", "zz", "line\\nbreak", "back\\\\slash", "null", "1")
PATTERNS = (
    "a",
    "a%",
    "%c",
    "%b%",
    "a_c",
    "_",
    "%",
    "",
    "A%",
    "a\\\\_c",
    "a\\\\%%",
    "%\\n%",
    "é%",
    "x''y",
    "a%c",
    "__",
    "%_",
)
DAYS = ("2026-01-01", "2026-01-05", "1969-12-31", "2026-02-28")
MOMENTS = ("2026-01-01 00:00:00", "2026-01-03 12:30:00.5", "1969-12-31 23:59:59.999999", "2026-01-05")
SYMBOLS = ("=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>")


class Grammar:
    """Makes conditions; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self._rnd = Random(seed)

    def conditions(self, count: int, depth: int = 3) -> list[str]:
        """So many, less those that came twice."""
        return list(dict.fromkeys(self.condition(depth) for _ in range(count)))

    def condition(self, depth: int = 3) -> str:
        rnd = self._rnd
        kind = rnd.random()
        if depth and kind < 0.22:
            return f"{self._part(depth)} {rnd.choice(('AND', 'OR', 'and', 'or'))} {self._part(depth)}"
        if depth and kind < 0.36:
            return f"{rnd.choice(('NOT ', 'not ', '! '))}{self._part(depth)}"
        if depth and kind < 0.42:
            return (
                f"{self._part(depth)} IS {rnd.choice(('', 'NOT '))}{rnd.choice(('NULL', 'TRUE', 'FALSE', 'UNKNOWN'))}"
            )
        return self._leaf()

    def _part(self, depth: int) -> str:
        made = self.condition(depth - 1)
        return f"({made})" if self._rnd.random() < 0.8 else made

    def _leaf(self) -> str:
        rnd = self._rnd
        makers = (
            (self._compare,) * 5
            + (self._between, self._in, self._in, self._like, self._like, self._like)
            + ((self._null, self._flag, self._distinct, self._odd, self._constant))
        )
        return rnd.choice(makers)()

    def _column(self, *kinds: str) -> tuple[str, str]:
        name = self._rnd.choice(kinds or ("i", "l", "f", "d", "m", "s", "day", "at", "naive", "part", "b"))
        spelled = self._rnd.choice((name, name, name, name.upper(), f"`{name}`", f"({name})"))
        return name, spelled

    def _value(self, name: str) -> str:
        rnd = self._rnd
        if rnd.random() < 0.06:
            return "NULL"
        if name in ("s", "part"):
            return "'" + rnd.choice(TEXTS).replace("'", "\\'") + "'"
        if name == "day":
            day = rnd.choice(DAYS)
            return rnd.choice((f"DATE '{day}'", f"'{day}'", f"date('{day}')", f"CAST('{day}' AS DATE)", f"DATE'{day}'"))
        if name in ("at", "naive"):
            moment = rnd.choice(MOMENTS)
            typed = "TIMESTAMP_NTZ" if name == "naive" else "TIMESTAMP"
            forms = (f"{typed} '{moment}'", f"'{moment}'", f"CAST('{moment}' AS {typed})", f"DATE '{rnd.choice(DAYS)}'")
            return rnd.choice(forms)
        if name == "b":
            return rnd.choice(("true", "false", "TRUE"))
        return rnd.choice(NUMBERS)

    def _compare(self) -> str:
        name, column = self._column()
        left, right = column, self._value(name)
        if self._rnd.random() < 0.25:
            left, right = right, left
        return f"{left} {self._rnd.choice(SYMBOLS)} {right}"

    def _between(self) -> str:
        name, column = self._column("i", "l", "d", "m", "s", "day", "at")
        negated = self._rnd.choice(("", "", "NOT "))
        return f"{column} {negated}BETWEEN {self._value(name)} AND {self._value(name)}"

    def _in(self) -> str:
        name, column = self._column()
        values = ", ".join(self._value(name) for _ in range(self._rnd.randrange(1, 4)))
        return f"{column} {self._rnd.choice(('', 'NOT '))}IN ({values})"

    def _like(self) -> str:
        rnd = self._rnd
        _, column = self._column("s", "part")
        pattern = "'" + rnd.choice(PATTERNS).replace("''", "\\'") + "'"
        negated = rnd.choice(("", "NOT "))
        how = rnd.random()
        if how < 0.6:
            return f"{column} {negated}LIKE {pattern}"
        if how < 0.7:
            return f"{column} {negated}ILIKE {pattern}"
        if how < 0.78:
            return f"{column} {negated}LIKE '{rnd.choice(('a|_c', '%|%%', 'a%'))}' ESCAPE '|'"
        if how < 0.9:
            return f"{column} {negated}LIKE {rnd.choice(('ANY', 'ALL', 'SOME'))} ('a%', {pattern})"
        return f"{column} {negated}RLIKE '{rnd.choice(('a', '^a', 'c$', 'a.c'))}'"

    def _null(self) -> str:
        _, column = self._column("i", "l", "f", "d", "m", "s", "b", "day", "at", "naive", "raw", "part")
        return f"{column} IS {self._rnd.choice(('', 'NOT '))}NULL"

    def _flag(self) -> str:
        return self._rnd.choice(("b", "NOT b", "b = true", "b IS TRUE", "b IS NOT FALSE", "!b", "b <> false"))

    def _distinct(self) -> str:
        name, column = self._column()
        return f"{column} IS {self._rnd.choice(('', 'NOT '))}DISTINCT FROM {self._value(name)}"

    def _constant(self) -> str:
        return self._rnd.choice(("true", "false", "NULL", "1 = 1", "NULL IS NULL", "1 > 2", "'a' = 'a'"))

    def _odd(self) -> str:
        """What only Spark evaluates."""
        return self._rnd.choice(
            (
                "i + 1 > 3",
                "upper(s) = 'A'",
                "length(s) > 1",
                "i % 2 = 0",
                "coalesce(i, 0) = 0",
                "CASE WHEN b THEN i > 1 ELSE i <= 1 END",
                "s || 'x' = 'ax'",
                "i = l",
                "-i = 1",
                "abs(i) BETWEEN 1 AND 3",
                "startswith(s, 'a')",
                "s COLLATE UTF8_LCASE = 'a'",
                "year(day) = 2026",
                "i IN (l, 1)",
                "i < d",
                "array_contains(array(1, 2), i)",
                "nullif(i, 1) IS NULL",
                "raw = X'61'",
                "s = 'a' 'b'",
                "s = r'back\\slash'",
                "i = CAST('3' AS INT)",
                "isnull(s)",
                "isnan(d)",
                "d = double('NaN')",
                "s BETWEEN 'a' AND 'b' AND NOT b",
                "i = 3 = b",
                "NOT i = 1 OR b",
            )
        )


def rows() -> str:
    """A query whose rows have nulls, NaN, infinities, both zeros, and texts that look like patterns."""
    texts = ", ".join("'" + text.replace("'", "\\'") + "'" for text in TEXTS)
    return f"""
    select cast(id as int) as id,
      if(id % 11 = 0, null, cast(id % 9 - 2 as int)) as i,
      if(id % 13 = 0, null, (id - 20) * 1000000007) as l,
      if(id % 7 = 0, null, if(id % 17 = 3, float('NaN'), cast(id / 8 - 2 as float))) as f,
      case id % 19 when 0 then null when 4 then double('NaN') when 5 then double('Infinity') when 6 then -0.0D
        when 7 then double('-Infinity') else id / 4D - 3 end as d,
      if(id % 8 = 5, null, cast(id / 4 - 3 as decimal(12,2))) as m,
      if(id % 10 = 9, null, element_at(array({texts}), cast(id % {len(TEXTS)} + 1 as int))) as s,
      if(id % 6 = 1, null, id % 3 = 0) as b,
      if(id % 9 = 8, null, date_add(date'2025-12-30', cast(id % 12 as int))) as day,
      if(id % 9 = 7, null, if(id = 33, timestamp'1969-12-31 23:59:59.999999',
        timestamp'2026-01-01 00:00:00' + make_interval(0, 0, 0, 0, cast(id * 3 as int)))) as at,
      if(id % 9 = 6, null,
        timestamp_ntz'2026-01-01 00:00:00' + make_interval(0, 0, 0, 0, cast(id * 2 as int))) as naive,
      if(id % 5 = 2, null, cast(cast(id as string) as binary)) as raw,
      if(id % 21 = 20, null, element_at(array('a', 'b', 'A', 'a_c'), cast(id % 4 + 1 as int))) as part
    from range(0, 64, 1, 8)"""
