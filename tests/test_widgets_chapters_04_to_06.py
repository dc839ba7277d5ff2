"""The mixing desk, the KV cache step by step, and the wiring: their numbers are those of torch and of real caches."""

from __future__ import annotations

import html
import itertools
import re

import numpy as np
import pytest
import torch

from helpers.widgets import kv_cache_steps, mixing_desk, wiring
from helpers.widgets.look import WIDTH
from helpers.widgets.mixing_desk import GAINS
from helpers.widgets.svg import LETTER, TEXT

WORDS = ["chef", "dropped", "glass", "bowl", "because", "it", "was", "slippery"]


def frames(page: str) -> list[str]:
    """The drawing of each state, without the words that describe it."""
    return re.findall('<svg [^>]*role="img"[^>]*>(.*?)</svg>', page, re.DOTALL)


def words_of(page: str) -> list[str]:
    return [html.unescape(words) for words in re.findall('<svg [^>]*role="img" aria-label="([^"]*)"', page)]


def headlines(page: str) -> list[str]:
    return [html.unescape(headline) for headline in re.findall("<p>(.*?)</p>", page)]


# ---- The wiring


@pytest.fixture(scope="module")
def llama() -> str:
    return wiring(n_heads=32, n_kv_heads=8, n_layers=32, d_head=128, n_tokens=8192, model="Llama-3-8B").html()


def test_the_wiring_goes_from_mha_to_mqa_over_every_size_of_group(llama):
    sizes = [re.search(r"in groups of (\d+) read (\d+)", words).groups() for words in words_of(llama)]
    assert sizes == [("1", "32"), ("2", "16"), ("4", "8"), ("8", "4"), ("16", "2"), ("32", "1")]


def test_every_query_head_has_one_line_and_its_group_one_end(llama):
    for drawing, n_kv_heads in zip(frames(llama), (32, 16, 8, 4, 2, 1), strict=True):
        ends = re.findall(r'<line x1="([\d.]+)" y1="[\d.]+" x2="([\d.]+)"', drawing)
        assert len({start for start, _ in ends}) == 32
        size = 32 // n_kv_heads
        ends_of_groups = [{end for _, end in ends[first : first + size]} for first in range(0, 32, size)]
        assert all(len(group) == 1 for group in ends_of_groups)
        assert len(set.union(*ends_of_groups)) == n_kv_heads


def test_the_bytes_are_those_of_tensors_of_that_size(llama):
    for words, drawing, n_kv_heads in zip(words_of(llama), frames(llama), (32, 16, 8, 4, 2, 1), strict=True):
        token = torch.empty(2, 32, n_kv_heads, 128, dtype=torch.float16)
        assert f"= {token.nbytes:,} bytes" in drawing
        assert f"Cache of 8,192 tokens: {8192 * token.nbytes / 1e9:.2f} GB of 4.29 GB" in words


def test_the_bar_of_the_cache_is_as_long_as_its_share(llama):
    bars = [re.findall(r'<rect [^>]*? width="([\d.]+)" height="22"', drawing)[-2:] for drawing in frames(llama)]
    shares = [float(filled) / float(frame) for filled, frame in bars]
    assert shares == pytest.approx([1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32], abs=1e-3)


def test_the_model_s_own_number_of_heads_is_shown_first(llama):
    picture = wiring(n_heads=32, n_kv_heads=8, n_layers=32, d_head=128, n_tokens=8192, model="Llama-3-8B")
    assert "16 tensors to keep instead of 64, 75 % less" in picture.alt_text


def test_heads_that_cannot_share_evenly_are_refused():
    with pytest.raises(ValueError, match="6 query heads cannot share 4"):
        wiring(n_heads=6, n_kv_heads=4, n_layers=1, d_head=2, n_tokens=1, model="none")


# ---- The KV cache, step by step


@pytest.fixture(scope="module")
def cached() -> str:
    return kv_cache_steps(WORDS, n_layers=2, n_kv_heads=4, d_head=12, bytes_per_value=4, start=3).html()


def test_the_counts_are_those_of_a_model_that_reads_token_by_token(cached):
    read = {"with": 0, "without": 0}
    caches = [torch.empty(2, 4, 0, 12) for _ in range(2)]  # keys and values of each layer
    for step, words in enumerate(words_of(cached), 1):
        read["with"] += 1
        read["without"] += len(WORDS[:step])
        caches = [torch.cat([cache, torch.empty(2, 4, 1, 12)], dim=2) for cache in caches]
        assert f"Projected so far: {read['with']} tokens with a cache, {read['without']} without." in words
        assert f"Kept: {sum(cache.nbytes for cache in caches):,} bytes with a cache" in words


def test_a_step_computes_one_token_with_a_cache_and_all_without(cached):
    for step, drawing in enumerate(frames(cached), 1):
        letters = re.findall(r'font-weight="(bold|normal)">([qkv])</text>', drawing)
        computed = [letter for weight, letter in letters if weight == "bold"]
        from_cache = [letter for weight, letter in letters if weight == "normal"]
        assert sorted(computed) == sorted("qkv" * (1 + step))
        assert sorted(from_cache) == sorted("kv" * (step - 1))


def test_it_plays_all_steps_and_begins_where_it_is_told(cached):
    picture = kv_cache_steps(WORDS, n_layers=2, n_kv_heads=4, d_head=12, bytes_per_value=4, start=3)
    assert picture.alt_text.startswith('The KV cache, step by step. "bowl" comes')
    assert len(re.findall("animation-delay", cached)) == len(WORDS)


# ---- The mixing desk


@pytest.fixture(scope="module")
def example() -> dict:
    generator = torch.Generator().manual_seed(4)
    return {
        "queries": torch.randn(3, 4, generator=generator),
        "weights": torch.softmax(3 * torch.randn(3, len(WORDS), generator=generator), dim=-1),
        "reports": torch.randn(3, 4, generator=generator),
        "W_O": torch.randn(12, 12, generator=generator),
    }


@pytest.fixture(scope="module")
def desk(example) -> str:
    return mixing_desk(
        **example,
        token="it",
        words=WORDS,
        heads=["noun", "trait", "action"],
        report_sliders=[f"r{number}" for number in range(12)],
        result_sliders=[f"s{number}" for number in range(12)],
    ).html()


def sums(words: str) -> list[float]:
    return [float(number.replace("−", "-")) for number in re.findall(r"s\d+ (−?[\d.]+)[,.]", words)]


def test_at_any_faders_the_sum_is_concat_times_w_o(desk, example):
    settings = list(itertools.product(GAINS.values(), repeat=3))
    assert len(words_of(desk)) == len(settings) == 27
    for words, gains in zip(words_of(desk), settings, strict=True):
        concat = (example["reports"] * torch.tensor(gains)[:, None]).reshape(12)
        assert sums(words) == pytest.approx((concat @ example["W_O"]).tolist(), abs=0.0051)


def test_a_headline_names_the_slider_that_changes_most(desk, example):
    concat = example["reports"].reshape(12)
    quiet = torch.cat([concat[:4], torch.zeros(4), concat[8:]])  # the second head is off
    before, after = concat @ example["W_O"], quiet @ example["W_O"]
    most = int((before - after).abs().argmax())
    headline = next(headline for headline in headlines(desk) if headline.startswith("Trait off: "))
    numbers = f"from {before[most]:.2f} to {after[most]:.2f}".replace("-", "−")
    assert headline == f'Trait off: "s{most}" changes most, {numbers}'


def test_what_is_lost_stays_as_a_dashed_frame(desk):
    def count(drawing: str) -> int:
        return sum(frames.count("<rect") for frames in re.findall('stroke-dasharray="3 3">(.*?)</g>', drawing))

    first, *others = frames(desk)
    assert count(first) == 0
    assert all(count(drawing) > 0 for drawing in others)


def test_the_rows_are_named_with_their_percent(desk, example):
    best = np.asarray(example["weights"][0]).argmax()
    assert f"noun: {WORDS[best]} {100 * example['weights'][0, best]:.0f} %" in words_of(desk)[0]


# ---- All three


def test_texts_end_inside_their_drawing(desk, cached, llama):
    for drawing in (drawing for page in (desk, cached, llama) for drawing in frames(page)):
        plain = re.sub('<g font-size="12" text-anchor="middle">.*?</g>', "", drawing, flags=re.DOTALL)
        for x, more, content in re.findall(r'<text x="([\d.]+)" y="[\d.]+"([^>]*)>([^<]*)<', plain):
            size = float((re.findall('font-size="([^"]+)"', more) or [TEXT])[0])
            part = 0 if '"end"' in more else 0.5 if '"middle"' in more else 1  # of the text lies right of x
            assert float(x) + part * LETTER * size * len(html.unescape(content)) <= WIDTH, content
