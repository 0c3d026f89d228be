"""`rleventlog samples`: what the model said.

- Texts of a run are hostile: control characters are shown as escapes, and every line of a text stays in its column,
  so that no text can pass for a heading or another sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from rl_eventlog_cli import output
from rl_eventlog_cli.options import FAILED, Json, RunPath, Utc, open_run

if TYPE_CHECKING:
    import polars as pl


_STEPS_LISTED = 10


def command(
    run: RunPath,
    step: Annotated[int | None, typer.Option(help="Only this step; default: the last of each split.")] = None,
    split: Annotated[str | None, typer.Option(help="Only this split: `validation`, `rollout`.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Only prompts with this text in them, or of this id; of all steps.")
    ] = None,
    best: Annotated[int | None, typer.Option(metavar="N", min=1, help="The N with the highest reward.")] = None,
    worst: Annotated[int | None, typer.Option(metavar="N", min=1, help="The N with the lowest reward.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Show at most N.")] = 10,
    as_json: Json = False,
    utc: Utc = False,
) -> None:
    """Show what the model said: prompts, responses, rewards.

    Without options: the samples of the last step of each split.

    Exit status 0, also where none matches; 1 where the run cannot be read or a file of its samples is damaged.
    """
    if best is not None and worst is not None:
        raise typer.BadParameter("give --best or --worst, not both")
    loaded = open_run(run, digests=True)
    chosen = _choose(loaded.samples(), step=step, split=split, prompt=prompt)
    matching = chosen.height
    if best is not None or worst is not None:
        chosen = _rewarded(chosen).sort("reward", descending=best is not None, maintain_order=True)
        limit = best or worst or limit
    rows = chosen.head(limit).to_dicts()
    if as_json:
        output.print_json({"run": run, "matching": matching, "samples": rows})
    else:
        for row in rows:
            _show(row, utc=utc)
        output.words(f"{len(rows)} of {matching} matching samples")
    if not matching:
        output.words(f"samples there are: {'; '.join(_there(loaded.samples())) or 'none'}")
    for problem in loaded.files.problems:
        output.words(f"damaged: {problem.path}: {problem.reason}")
    if loaded.files.problems:
        raise typer.Exit(FAILED)


def _choose(samples: pl.LazyFrame, *, step: int | None, split: str | None, prompt: str | None) -> pl.DataFrame:
    import polars as pl

    if split is not None:
        samples = samples.filter(pl.col("split") == split)
    if prompt is not None:
        samples = samples.filter(
            pl.col("prompt").str.contains(prompt, literal=True).fill_null(value=False) | pl.col("prompt_id").eq(prompt)
        )
    if step is not None:
        samples = samples.filter(pl.col("step") == step)
    elif prompt is None:
        samples = samples.filter(pl.col("step") == pl.col("step").max().over("split"))
    order = ["split", "step", "attempt", "role", "rank", "seq"]
    return samples.sort(order, maintain_order=True).collect()


def _there(samples: pl.LazyFrame) -> Iterator[str]:
    """Of each split its steps."""
    import polars as pl

    steps = samples.group_by("split").agg(pl.col("step").unique().sort(nulls_last=True)).sort("split").collect()
    for split, found in steps.iter_rows():
        if len(found) > _STEPS_LISTED:
            yield f"{split} at {len(found)} steps, {found[0]} to {found[-1]}"
        else:
            yield f"{split} at {', '.join('no step' if step is None else f'step {step}' for step in found)}"


def _rewarded(samples: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    rewarded = samples.filter(pl.col("reward").is_not_null() & pl.col("reward").is_not_nan())
    if left_out := samples.height - rewarded.height:
        output.words(f"left out {left_out} without a reward")
    return rewarded


def _show(row: Mapping[str, Any], *, utc: bool) -> None:
    output.line(" · ".join(_heading(row, utc=utc)), style="bold")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in _texts(row):
        body = Text("\n".join(output.plain(line) for line in text.split("\n")))
        grid.add_row(Text(f"  {output.plain(label)}", style="dim"), body)
    output.console().print(grid)
    output.line()


def _heading(row: Mapping[str, Any], *, utc: bool) -> Iterator[str]:
    yield f"step {row['step']}"
    yield row["split"]
    if row["dataset"] is not None:
        yield row["dataset"]
    yield row["role"] if row["rank"] is None else f"{row['role']} {row['rank']}"
    if row["sample_index"] is not None:
        yield f"sample {row['sample_index']}"
    if row["reward"] is not None:
        yield f"reward {output.number(row['reward'])}"
    if row["response_tokens"] is not None:
        yield f"{row['response_tokens']} tokens"
    if row["finish_reason"] is not None:
        yield row["finish_reason"]
    yield output.clock(row["time"], utc=utc)


def _texts(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    messages: Sequence[Mapping[str, Any]] = row["messages"] or ()
    for message in messages:
        yield message["role"] or "message", message["content"] or message["tool_calls"] or ""
    for label in ("prompt", "response", "reference"):
        if row[label] is not None:
            yield label, row[label]
