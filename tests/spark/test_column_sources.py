"""Column sources by the text of a plan, as Spark 4.1 prints it; with Spark itself in `jobs/test_correct_branch.py`."""

from __future__ import annotations

import textwrap

import pytest

from airflow_paimon.spark.jobs.column_sources import sources_in

VIEWS = {"branch": ("k", "v", "n", "dt"), "rates": ("k", "f")}
READ = """
+- SubqueryAlias branch
   +- View (`branch`, [k#0L, v#1, n#2, dt#3])
      +- LocalRelation [k#0L, v#1, n#2, dt#3]
"""
CTE = """
    WithCTE
    :- CTERelationDef 0, false
    :  +- SubqueryAlias r
    :     +- View (`rates`, [k#4L, f#5])
    :        +- Project [k#90L AS k#4L, f#91 AS f#5]
    :           +- LogicalRDD [k#90L, f#91], false
    +- Project [k#8L AS k#9L, f#5 AS v#10, (f#5 + f#7) AS n#11, dt#3]
       +- Join Inner, (k#4L = k#6L)
          :- CTERelationRef 0, true, [k#4L, f#5], false, false
          +- CTERelationRef 0, true, [k#6L, f#7], false, false
"""


def sources(plan: str) -> dict[str, list[str]]:
    return sources_in(textwrap.dedent(plan).strip("\n"), ("k", "v", "n", "dt"), VIEWS)


def below(top: str) -> str:
    return top + READ.rstrip()


def test_expressions_and_their_names() -> None:
    assert sources(below("Project [k#0L, upper(v#1) AS v#6, cast(n#2 as bigint) AS CAST(n AS BIGINT)#7L, dt#3]")) == {
        "k": ["branch.k"],
        "v": ["branch.v"],
        "n": ["branch.n"],
        "dt": ["branch.dt"],
    }
    assert sources(below("Aggregate [k#0L], [k#0L, max(v#1) AS v#6, count((n#2 + k#0L)) AS n#7L, 1 AS dt#8]")) == {
        "k": ["branch.k"],
        "v": ["branch.v"],
        "n": ["branch.k", "branch.n"],
    }


def test_a_common_table_that_is_read_twice() -> None:
    """A column that nothing defines (k#8) has no sources; the views' own plans don't count."""
    assert sources(CTE) == {"v": ["rates.f"], "n": ["rates.f"]}


@pytest.mark.parametrize(
    "top",
    [
        "Project [k#0L, concat(v#1, () AS v#6, n#2, dt#3]",
        "Project [k#0L, v#1, n#2]",
        "Expand [[k#0L, v#1], [k#0L, null]], [k#20L, v#21, n#22, dt#23]",
        "Project [k#0L, concat(v#1,\n) AS v#6, n#2, dt#3]",
    ],
    ids=["a bracket in a literal", "fewer columns", "another node", "a line's end in a literal"],
)
def test_what_is_not_understood_gives_nothing(top: str) -> None:
    assert sources(below(top)) == {}


def test_names_that_look_like_the_plan_s_own_marks_give_nothing() -> None:
    assert sources_in("LocalRelation [a#1#0L]", ["a#1"], {"branch": ["a#1"]}) == {}
