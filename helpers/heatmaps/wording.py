"""What the pictures say: their alternative texts, and their titles when none are given."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from helpers.heatmaps.reading import ROUNDING, Labels

DETAILED = 12  # up to so many heads each head gets a sentence, and labelled axes
SENTENCES = 16  # so many rows are described
NO_PATTERN = "with no plain pattern"  # the heads that are left over


def spoken(title: str | None, words: Iterable[str]) -> str:
    """An alternative text of sentences, the title first."""
    return " ".join(_sentence(text) + "." for text in [title, *words] if text)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".")


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def _counted(shape: Sequence[int]) -> str:
    if shape[0] == shape[1]:
        return plural(shape[0], "token")
    return f"{plural(shape[0], 'query', 'queries')} and {plural(shape[1], 'key')}"


def _listed(items: Sequence[Any], limit: int) -> str:
    shown = ", ".join(str(item) for item in items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"


def percent(weight: float) -> str:
    """A whole number of percent that keeps 0 and 100 for exactly that."""
    rounded = round(100 * weight)
    if weight > 0 and rounded == 0:
        return "<1"
    return ">99" if weight < 1 - 1e-9 and rounded == 100 else str(rounded)


# One head


def head_headline(matrix: np.ndarray, queries: Labels, keys: Labels) -> str:
    row = _most_decided(matrix)[0]
    return _sentence(_row_sentence(matrix[row], queries.spoken[row], keys))


def head_sentences(matrix: np.ndarray, queries: Labels, keys: Labels) -> Iterator[str]:
    yield f"Attention weights of {_counted(matrix.shape)}"
    rows = np.arange(len(matrix))
    if len(matrix) > SENTENCES:
        rows = _most_decided(matrix)[: SENTENCES // 2]
        yield f"The {len(rows)} most decided of the queries follow"
    for row in rows:
        yield _row_sentence(matrix[row], queries.spoken[row], keys)
    totals = matrix.sum(axis=1)
    off = np.flatnonzero((np.abs(totals - 1) > ROUNDING) & (totals > 0))
    if off.size:
        sums = [f"{queries.spoken[r]} to {percent(totals[r])} %" for r in off]
        yield f"Not every row sums to 100 %: {_listed(sums, 3)}"


def _row_sentence(row: np.ndarray, query: str, keys: Labels) -> str:
    used = np.flatnonzero(row)
    if not used.size:
        return f"{query} attends to nothing"
    first, second = (*np.argsort(-row, kind="stable")[:2], 0)[:2]
    if used.size == 1:
        return f"{query} attends only to {keys.spoken[first]} ({percent(row[first])} %)"
    if _is_even(row):
        return f"{query} spreads evenly over {used.size} tokens (at most {percent(row[first])} %)"
    how = "mostly" if row[first] >= 0.5 else "most"
    then = f", then {keys.spoken[second]} ({percent(row[second])} %)" if row[second] >= 0.05 else ""
    return f"{query} attends {how} to {keys.spoken[first]} ({percent(row[first])} %){then}"


def _is_even(row: np.ndarray) -> bool:
    return bool(row.max() <= 1.25 * row[row > 0].mean())


def _most_decided(matrix: np.ndarray) -> np.ndarray:
    """Rows by their largest weight; those with a single key to look at had no choice and come last."""
    had_choice = (matrix > 0).sum(axis=1) > 1
    return np.argsort(-(matrix.max(axis=1) + 10 * had_choice), kind="stable")


# Many heads


def grid_headline(heads: np.ndarray, queries: Labels, keys: Labels) -> str:
    if len(heads) == 1:
        return head_headline(heads[0], queries, keys)
    groups = _heads_by_pattern(heads)
    if list(groups) == [NO_PATTERN]:
        return f"Attention weights of {plural(len(heads), 'head')}"
    return f"{plural(len(heads), 'head')}: " + ", ".join(f"{len(group)} {name}" for name, group in groups.items())


def grid_sentences(heads: np.ndarray, queries: Labels, keys: Labels, names: list[str]) -> Iterator[str]:
    yield f"Attention weights of {plural(len(heads), 'head')} over {_counted(heads.shape[1:])}"
    if len(heads) <= DETAILED:
        for name, head in zip(names, heads, strict=True):
            yield f"{name}: {_pattern(head) or head_headline(head, queries, keys)}"
    else:
        for pattern, group in _heads_by_pattern(heads).items():
            members = "" if pattern == NO_PATTERN else f": {_listed([names[h] for h in group], 8)}"
            yield f"{plural(len(group), 'head')} {pattern}{members}"


def _heads_by_pattern(heads: np.ndarray) -> dict[str, list[int]]:
    """The largest group first, heads without a pattern last."""
    groups: dict[str, list[int]] = {}
    for index, head in enumerate(heads):
        groups.setdefault(_pattern(head) or NO_PATTERN, []).append(index)
    return dict(sorted(groups.items(), key=lambda group: (group[0] == NO_PATTERN, -len(group[1]))))


def _pattern(head: np.ndarray) -> str | None:
    """What the head does on average, in words, or None when it is no classic pattern."""
    with_choice = head[(head > 0).sum(axis=1) > 1]
    if len(with_choice) and all(_is_even(row) for row in with_choice):
        return "spread evenly"
    if head.shape[0] != head.shape[1] or len(head) < 3:
        return None
    means = {
        "the previous token": head.diagonal(-1).mean(),
        "the first token": head[1:, 0].mean(),
        "the token itself": head.diagonal().mean(),
        "the next token": head.diagonal(1).mean(),
    }
    name = max(means, key=means.get)
    return f"mostly on {name}" if means[name] >= 0.5 else None


# Budgets


def budget_headline(shares: np.ndarray, tokens: Labels, rows: list[str]) -> str:
    if len(shares) == 1:
        return f"{tokens.spoken[shares[0].argmax()]} gets {percent(shares.max())} % of the budget"
    largest = shares.max(axis=1)
    high = int(largest.argmax())
    low = int(np.where(largest > 0, largest, 2).argmin())  # a row that spends nothing has no largest share
    ends = [f"{percent(largest[row])} % ({rows[row]})" for row in (low, high)]
    return f"Largest share: {' to '.join(ends)}"


def budget_sentences(shares: np.ndarray, tokens: Labels, rows: list[str]) -> Iterator[str]:
    yield "Budgets of 100 %"
    for row, name in islice(zip(shares, rows, strict=True), SENTENCES):
        used = [t for t in np.argsort(-row, kind="stable") if row[t] > 0]
        top = used if len(used) <= 5 else used[:4]  # so the others are two at least
        parts = [f"{tokens.spoken[t]} {percent(row[t])} %" for t in top]
        rest = row.sum() - row[top].sum()
        if rest > 0.005:
            parts.append(f"{len(used) - len(top)} others {percent(rest)} %")
        if 1 - row.sum() > ROUNDING:
            parts.append(f"not spent {percent(1 - row.sum())} %")
        yield (f"{name}: " if name else "") + ", ".join(parts)
    if len(shares) > SENTENCES:
        yield plural(len(shares) - SENTENCES, "more row")


# Masks


def mask_headline(mask: np.ndarray) -> str:
    n_queries, n_keys = mask.shape
    if mask.all():
        return "Every query may attend to every key"
    if not mask.any():
        return "No query may attend to anything"
    causal = np.tri(n_queries, n_keys, n_keys - n_queries, dtype=bool)
    if np.array_equal(mask, causal):
        return "Causal: each query sees itself and the past" + (", aligned to the end" if n_queries != n_keys else "")
    if np.array_equal(mask, np.tri(n_queries, n_keys, dtype=bool)):
        return "A lower triangle aligned to the top left: later keys are never seen"
    if np.array_equal(mask, causal[::-1, ::-1]):
        return "An upper triangle: each query sees itself and the future"
    if (mask == mask[0]).all():
        return f"Every query may attend to the same {mask[0].sum()} of {n_keys} keys"
    return f"{plural(int(mask.sum()), 'pair')} of {mask.size} allowed"


def mask_sentences(mask: np.ndarray) -> Iterator[str]:
    yield f"Mask for {_counted(mask.shape)}"
    yield mask_headline(mask)
    counts = mask.sum(axis=1)
    if counts.min() == counts.max():
        yield f"Each query may see {counts[0]} of {plural(mask.shape[1], 'key')}"
    else:
        seen = _listed(counts, len(counts)) if len(counts) <= SENTENCES else f"{counts.min()} to {counts.max()}"
        yield f"Keys each query may see, from the first query to the last: {seen}"
    if mask.any() and not counts.all():
        yield f"{plural(int((counts == 0).sum()), 'query', 'queries')} may see nothing"


# Tensors and memory


def tensor_headline(marked: np.ndarray) -> str:
    mixed = f": {marked.sum()} of {plural(marked.size, 'entry', 'entries')} mixed up" if marked.any() else ""
    return f"Shape {marked.shape}{mixed}"


def tensor_sentences(texts: np.ndarray, marked: np.ndarray, names: list[str], row_label: str) -> Iterator[str]:
    """A sentence for each row of each panel; `names` are those of the panels."""
    for panel, row in islice(np.ndindex(texts.shape[:2]), 2 * SENTENCES):
        where = f"{names[panel]}, {row_label}" if names[panel] else row_label
        entries, mixed = texts[panel, row], texts[panel, row][marked[panel, row]]
        mixed_up = f"; mixed up: {', '.join(mixed)}" if mixed.size else ""
        yield f"{where} {row}: {' '.join(entries)}{mixed_up}"


def view_headline(positions: np.ndarray, strides: Sequence[int]) -> str:
    order = positions.ravel()
    walk = "jumps through memory (not contiguous)"
    if np.array_equal(order, np.arange(order.size)):
        walk = "straight through memory (contiguous)"
    elif len(np.unique(order)) < order.size:
        walk = "several indices share a memory cell"
    return f"Shape {positions.shape}, strides {strides}: {walk}"


def view_sentences(positions: np.ndarray, strides: Sequence[int]) -> Iterator[str]:
    names = ("panel", "row", "column")[-len(strides) :]
    steps = [f"{plural(stride, 'cell')} on to the next {name}" for stride, name in zip(strides, names, strict=True)]
    yield f"Steps in memory: {', '.join(steps)}"
    yield f"Row by row it reads memory {_listed(positions.ravel(), 24)}"
