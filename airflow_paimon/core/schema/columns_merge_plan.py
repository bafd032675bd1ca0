"""The columns of main after a publish where main and the branch have both changed them since the branch point (pure).

Files are read by field id, and each side has given its new columns ids of its own. So a branch's new column is the one
that main has got under the same name and type; any other gets an id that main has never used. The branch's files need
no change: main gets a schema version for them that has the same columns under main's ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import ArrayType, DataField, DataType, MapType, RowType, field_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedColumns:
    """``fields``: main's columns after the publish. ``ids``: main's field id of each one that the branch has given.

    ``highest``: the highest field id that main has used then.
    """

    fields: tuple[DataField, ...]
    ids: Mapping[int, int]
    highest: int

    def of_main(self, schema: TableSchema) -> tuple[DataField, ...]:
        """Return the columns of one of the branch's schema versions, under main's ids."""
        return _with_ids(schema.fields, self.ids)


def merge_columns(
    table: str,
    base: TableSchema,
    main: Sequence[TableSchema],
    branch: Sequence[TableSchema],
    withdrawn: Collection[int] = (),
) -> MergedColumns:
    """Merge what both sides changed since ``base``; main's columns come first, then the branch's new ones.

    ``main`` and ``branch``: their schema versions since then, ascending, not empty. ``withdrawn``: as in
    ``plan_schemas``.

    Raises:
        ConflictError: says for each column what is in the way, and what to do.
    """
    merge = _Merge(base, main, branch, withdrawn)
    fields = merge.fields()
    if merge.problems:
        raise ConflictError(
            f"{table}: columns changed on main and on the branch since the branch point and can't be brought "
            f"together: {'; '.join(merge.problems)}. Or create a new branch from main's head, change its columns "
            f"there, and make the correction again",
            details={"columns": merge.problems},
        )
    return MergedColumns(fields=fields, ids=merge.ids, highest=merge.highest)


class _Merge:
    def __init__(
        self,
        base: TableSchema,
        main: Sequence[TableSchema],
        branch: Sequence[TableSchema],
        withdrawn: Collection[int],
    ) -> None:
        self.base, self.mine, self.theirs = base, main[-1], branch[-1]
        self.shared = set(field_ids(base.fields))
        self.problems: list[str] = []
        self.ids: dict[int, int] = {}
        self.highest = max(self.mine.highest_field_id, *field_ids(self.mine.fields))
        self.branch = branch
        self._names_of_main = {f.name for s in main if s.id not in withdrawn for f in s.fields if not self._has(f.id)}

    def _has(self, field_id: int) -> bool:
        return field_id in self.shared

    def fields(self) -> tuple[DataField, ...]:
        if len({(s.partition_keys, s.primary_keys) for s in (self.base, self.mine, self.theirs)}) > 1:
            self.problems.append("a key column was renamed: rename it on the other side as well, to the same name")
        added = [f for f in self.theirs.fields if not self._has(f.id)]
        new = [f for f in added if not self._is_on_main(f)]
        self._give_ids()
        out = [*self._kept(), *_with_ids(new, self.ids)]
        names = [f.name for f in out]
        for name in sorted({n for n in names if names.count(n) > 1}):
            self.problems.append(f"two columns would have the name {name!r}: rename one of them")
        return tuple(out)

    def _is_on_main(self, field: DataField) -> bool:
        """Whether main has got this new column of the branch as well; notes why it can't be told, or can't be."""
        name = field.name
        mine = next((f for f in self.mine.fields if f.name == name), None)
        if mine is None:
            former = sorted(self._names(field.id) & self._names_of_main)
            if former:
                what = (
                    f"main has dropped or renamed column {name!r}"
                    if former == [name]
                    else (
                        f"the branch has renamed column {former[0]!r} to {name!r}, which main has under its former name"
                    )
                )
                self.problems.append(f"{what}: give it one name on both sides")
            return False
        if self._has(mine.id):
            self.problems.append(f"main has renamed another column to {name!r}: rename one of the two")
        elif not _same_but_ids(field.type, mine.type):
            self.problems.append(
                f"column {name!r} is {mine.type} on main and {field.type} on the branch: alter one to the other's type"
            )
        else:
            self.ids |= dict(zip(field_ids((field,)), field_ids((mine,)), strict=True))
        return True

    def _names(self, field_id: int) -> set[str]:
        return {f.name for s in self.branch for f in s.fields if f.id == field_id}

    def _give_ids(self) -> None:
        """Give every other id of the branch's columns one of its own on main."""
        theirs = dict.fromkeys(i for s in self.branch for i in field_ids(s.fields))
        free = self.highest
        for field_id in sorted(i for i in theirs if i not in self.ids and not self._has(i)):
            free += 1
            self.ids[field_id] = free
        self.highest = free

    def _kept(self) -> Iterator[DataField]:
        """Main's columns, with what the branch has changed in those of the branch point."""
        before = {f.id: f for f in self.base.fields}
        theirs = {f.id: f for f in _with_ids(self.theirs.fields, self.ids) if f.id in before}
        mine = {f.id: f for f in self.mine.fields}
        for field_id in before.keys() - mine.keys() & theirs.keys():
            if _told(theirs[field_id]) != _told(before[field_id]):
                name = before[field_id].name
                self.problems.append(f"main has dropped column {name!r}, and the branch has changed it: drop it there")
        for field in self.mine.fields:
            old, their = before.get(field.id), theirs.get(field.id)
            if old is None or (their is not None and _told(their) in (_told(old), _told(field))):
                yield field
            elif _told(field) == _told(old):
                if their is not None:
                    yield their
            else:
                now = "dropped" if their is None else f"made {their.name} {their.type}"
                self.problems.append(
                    f"column {old.name!r} was changed on main to {field.name} {field.type}, and {now} on the branch: "
                    f"make the same change on both sides"
                )


def _told(field: DataField) -> tuple[str, DataType]:
    return field.name, field.type


def _with_ids(fields: Sequence[DataField], ids: Mapping[int, int]) -> tuple[DataField, ...]:
    return tuple(replace(f, id=ids.get(f.id, f.id), type=_type_with_ids(f.type, ids)) for f in fields)


def _type_with_ids(data_type: DataType, ids: Mapping[int, int]) -> DataType:
    if isinstance(data_type, RowType):
        return replace(data_type, fields=_with_ids(data_type.fields, ids))
    if isinstance(data_type, ArrayType):
        return replace(data_type, element=_type_with_ids(data_type.element, ids))
    if isinstance(data_type, MapType):
        return replace(data_type, key=_type_with_ids(data_type.key, ids), value=_type_with_ids(data_type.value, ids))
    return data_type


def _same_but_ids(one: DataType, other: DataType) -> bool:
    return str(one) == str(other)
