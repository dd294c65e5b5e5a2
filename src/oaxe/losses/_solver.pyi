def solve(
    cost: int,
    kind: int,
    batch: int,
    rows: int,
    columns: int,
    batch_stride: int,
    row_stride: int,
    column_stride: int,
    mask: int,
    swapped: bool,
    found: int,
    /,
) -> int: ...
