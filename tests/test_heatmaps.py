"""Pictures say what they show: in their labels, in words, and once."""

import base64
import gc
import io
import subprocess
import sys
import weakref
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from IPython.core.pylabtools import select_figure_formats
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image

from helpers import WITHOUT_PICTURES, heatmaps, theme

TEXT = "The chef dropped the glass bowl on the tile floor because it was slippery ."
SENTENCE = TEXT.split()
T = len(SENTENCE)


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def random_weights(*shape, seed=0, spread=2.0):
    return softmax(np.random.default_rng(seed).normal(size=shape) * spread)


def texts(picture):
    return [text.get_text() for text in picture.findobj(Text) if text.get_text() and text.get_visible()]


def saved(picture):
    file = io.BytesIO()
    picture.savefig(file, format="png")
    return Image.open(file)


def token_tensor(n_tokens=5, n_sliders=6):
    return np.array([[f"t{t}s{s}" for s in range(n_sliders)] for t in range(n_tokens)])


EVERY_PICTURE = {
    "attention_map": lambda: heatmaps.attention_map(random_weights(T, T), SENTENCE),
    "head_grid": lambda: heatmaps.head_grid(random_weights(3, T, T), SENTENCE),
    "head_grid of many": lambda: heatmaps.head_grid(random_weights(32, T, T), SENTENCE),
    "budget_bars": lambda: heatmaps.budget_bars(random_weights(3, T) * 0.9, SENTENCE),
    "mask_map": lambda: heatmaps.mask_map(np.tri(12, dtype=bool), SENTENCE[:12]),
    "tensor_map": lambda: heatmaps.tensor_map(token_tensor().reshape(3, 5, 2), highlight=np.ones((3, 5, 2), bool)),
    "stride_map": lambda: heatmaps.stride_map((6, 5), (1, 6)),
}
every_picture = pytest.mark.parametrize("draw", EVERY_PICTURE.values(), ids=EVERY_PICTURE)


# Shown once, with its words


class Images(HTMLParser):
    """The attributes of all images in a page."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.found.append(dict(attributes))


def notebook_formatter(matplotlib_inline):
    """IPython's display machinery, optionally as `%matplotlib inline` leaves it."""
    formatter = DisplayFormatter()
    formatter.active_types = formatter.format_types
    if matplotlib_inline:
        select_figure_formats(type("Shell", (), {"display_formatter": formatter}), {"png", "svg"})
    return formatter


@pytest.mark.parametrize("matplotlib_inline", [False, True])
@every_picture
def test_a_notebook_gets_one_image_with_the_alternative_text(draw, matplotlib_inline):
    picture = draw()
    shown, metadata = notebook_formatter(matplotlib_inline).format(picture)
    (image,) = Images(shown["text/html"]).found
    assert image["alt"] == picture.alt_text
    assert "max-width:100%" in image["style"]
    assert shown["text/plain"] == picture.alt_text
    assert metadata["image/png"] == {"alt": picture.alt_text}
    assert base64.b64decode(shown["image/png"]).startswith(b"\x89PNG")


def test_no_title_or_token_can_break_out_of_the_alternative_text():
    nasty = """"><script>alert('x')</script>&amp;\n"""
    picture = heatmaps.attention_map([[1.0]], [nasty], title=nasty)
    page = picture._repr_mimebundle_()[0]["text/html"]
    (image,) = Images(page).found
    assert image["alt"] == " ".join(picture.alt_text.split())
    assert "<script" not in page


@pytest.mark.slow
def test_a_kernel_and_nbconvert_show_each_picture_once_whatever_pyplot_does():
    from nbclient import NotebookClient
    from nbconvert import HTMLExporter

    draw = "heatmaps.attention_map([[0.25, 0.75], [0.5, 0.5]], ['glass', 'bowl'], title='{}')"
    cells = [
        "from helpers import heatmaps",
        draw.format("before pyplot"),
        "import matplotlib.pyplot as plt\n" + draw.format("after pyplot"),
        "%matplotlib inline\n" + draw.format("after inline"),
        "plt.figure()\nplt.close()\ndisplay(" + draw.format("displayed") + ")\nNone",
        "kept = " + draw.format("not shown"),
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, kernel_name="python3").execute()
    assert [len(cell.outputs) for cell in notebook.cells] == [0, 1, 1, 1, 1, 0]
    page, _ = HTMLExporter().from_notebook_node(notebook)
    titles = [image.get("alt", "").split(".")[0] for image in Images(page).found]
    assert titles == ["Before pyplot", "After pyplot", "After inline", "Displayed"]


def test_drawing_leaves_nothing_behind_in_pyplot_or_memory():
    pictures = [heatmaps.attention_map(random_weights(4, 4), list("abcd")) for _ in range(50)]
    pictures[0]._repr_mimebundle_()
    alive = [weakref.ref(picture) for picture in pictures]
    del pictures
    gc.collect()
    assert plt.get_fignums() == []
    assert not any(reference() for reference in alive)


def test_neither_importing_nor_showing_pictures_imports_pyplot_or_torch():
    code = (
        "import sys; from helpers import heatmaps; heatmaps.attention_map([[1.0]])._repr_mimebundle_(); "
        "print({'matplotlib.pyplot', 'torch'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


@every_picture
def test_the_small_image_in_a_notebook_looks_like_the_saved_one(draw):
    picture = draw()
    bundle, _ = picture._repr_mimebundle_()
    shown = Image.open(io.BytesIO(base64.b64decode(bundle["image/png"]))).convert("RGB")
    drawn = saved(picture).convert("RGB")
    assert np.abs(np.asarray(shown, dtype=int) - np.asarray(drawn, dtype=int)).max() <= 16
    assert shown.getpixel((0, 0)) == (255, 255, 255)


@every_picture
def test_pictures_are_opaque_white_and_alike_under_any_style_of_the_learner(draw):
    plain = saved(draw()).convert("RGBA")
    taste = {"axes.grid": True, "axes.axisbelow": False, "savefig.transparent": True, "image.origin": "lower"}
    with plt.style.context(["dark_background", taste]):
        styled = saved(draw()).convert("RGBA")
    assert plain.getpixel((0, 0)) == (255, 255, 255, 255)
    assert plain.tobytes() == styled.tobytes()


# Legible


@pytest.mark.parametrize("n_tokens", [1, 5, T, 64, 200])
def test_query_labels_never_overlap_and_the_picture_fits_a_laptop(n_tokens):
    tokens = [f"a rather long token {i}" for i in range(n_tokens)]
    for picture in (
        heatmaps.attention_map(random_weights(n_tokens, n_tokens), tokens),
        heatmaps.head_grid(random_weights(3, n_tokens, n_tokens), tokens),
    ):
        assert saved(picture).width / theme.DPI <= 10
        spans = [label.get_window_extent() for label in picture.axes[0].get_yticklabels()]
        assert all(upper.y0 >= lower.y1 - 1 for upper, lower in zip(spans, spans[1:], strict=False))


def test_labels_have_contrast_on_every_colour_they_can_meet():
    backgrounds = [theme.weight_colour(weight) for weight in np.linspace(0, 1, 256)]
    backgrounds += [*theme.TOKEN_COLOURS, theme.REST, theme.PAPER, theme.MAY_ATTEND, theme.BLOCKED]
    for background in backgrounds:
        assert theme.contrast(theme.label_colour(background), background) >= 4.5
    assert theme.contrast(theme.FAINT, theme.PAPER) >= 4.5
    assert theme.contrast("#000000", "#ffffff") == pytest.approx(21)


def test_numbers_have_contrast_on_the_cell_they_stand_on():
    axes = heatmaps.attention_map(random_weights(T, T), SENTENCE).axes[0]
    (image,) = axes.images
    numbers = [text for text in axes.texts if text.get_transform() == axes.transData]
    assert len(numbers) == T * T
    for number in numbers:
        column, row = number.get_position()
        cell = image.to_rgba(image.get_array()[row, column])[:3]
        assert theme.contrast(number.get_color(), cell) >= 4.5


def test_cells_carry_percents_up_to_sixteen_columns():
    def numbers(n):
        return [t for t in texts(heatmaps.attention_map(np.full((n, n), 1 / n), ["x"] * n)) if t == str(round(100 / n))]

    assert len(numbers(16)) == 16 * 16
    assert numbers(17) == []


def test_a_blank_cell_is_exactly_zero_and_a_tiny_weight_is_not():
    exact = texts(heatmaps.attention_map([[1.0, 0.0]], ["query"], ["a", "b"]))
    leaking = texts(heatmaps.attention_map([[1.0 - 1e-7, 1e-7]], ["query"], ["a", "b"]))
    assert "100" in exact and "<1" not in exact and "0" not in exact
    assert ">99" in leaking and "<1" in leaking


def test_dollar_signs_in_tokens_stay_dollar_signs():
    saved(heatmaps.attention_map(np.eye(2), ["$x_{", "}$"]))


# Attention


def test_the_alternative_text_of_attention_names_the_strongest_keys():
    weights = np.zeros((1, 4))
    weights[0] = 0.62, 0.2, 0.15, 0.03
    picture = heatmaps.attention_map(weights, ["it"], ["bowl", "chef", "slippery", "was"])
    finding = "'it' attends mostly to 'bowl' (62 %), then 'chef' (20 %)"
    assert finding in picture.alt_text
    assert finding in " ".join(" ".join(texts(picture)).split())  # the title, on as many lines as it needs
    assert {"it", "bowl", "chef", "slippery", "was", "62", "20", "15", "3"} <= set(texts(picture))


def test_words_that_occur_twice_are_told_apart_by_position():
    weights = np.zeros((T, T))
    weights[:, 7] = 1.0
    assert "'it' attends only to 'the' at 7 (100 %)" in heatmaps.attention_map(weights, SENTENCE).alt_text


def test_rows_that_do_not_sum_to_one_are_drawn_and_mentioned():
    picture = heatmaps.attention_map([[0.9, 0.6], [0.0, 0.0]], ["a", "b"])
    assert "Not every row sums to 100 %: 'a' to 150 %" in picture.alt_text
    assert "'b' attends to nothing" in picture.alt_text


def test_a_grid_names_each_head_and_what_it_does():
    previous = np.eye(T, k=-1)
    previous[0, 0] = 1
    first = np.eye(T)[[0] * T]
    heads = np.stack([previous, first, np.eye(T), np.full((T, T), 1 / T)])
    picture = heatmaps.head_grid(heads, SENTENCE, titles=["which noun", "which trait", "itself", "lazy"])
    for words in (
        "Which noun: mostly on the previous token",
        "Which trait: mostly on the first token",
        "Itself: mostly on the token itself",
        "Lazy: spread evenly",
    ):
        assert words in picture.alt_text
    assert {"which noun", "which trait", "itself", "lazy", *SENTENCE} <= set(texts(picture))


def test_hundreds_of_heads_share_axes_and_each_keeps_its_name():
    names = [f"L{layer} H{head}" for layer in range(30) for head in range(9)]
    heads = random_weights(270, 8, 8)
    heads[17] = np.eye(8)
    picture = heatmaps.head_grid(heads, titles=names)
    assert len(picture.axes) == 2  # the tiles and the colour bar
    assert set(names) <= set(texts(picture))
    assert "1 head mostly on the token itself: L1 H8" in picture.alt_text
    assert len(picture.alt_text) < 1000
    assert saved(picture).width / theme.DPI <= 9.5


# Budgets


def bars(picture):
    """Widths of the pieces, a column for each piece."""
    axes = picture.axes[0]
    return np.array([[bar.get_width() for bar in piece] for piece in axes.containers]).T


@pytest.mark.parametrize("total", [1.0, 0.6, 0.0])
def test_every_bar_is_a_hundred_percent_spent_or_not(total):
    picture = heatmaps.budget_bars(random_weights(3, 20) * total, [f"w{i}" for i in range(20)])
    assert np.allclose(bars(picture).sum(axis=1), 1)
    hatched = [bar.get_width() for bar in picture.axes[0].patches if bar.get_hatch()]
    assert np.allclose(hatched, [1 - total] * 3 if total < 1 else [])
    assert ("not spent" in picture.alt_text) == (total < 1)


def test_budgets_name_the_largest_shares_in_the_bar_and_in_words():
    picture = heatmaps.budget_bars([0.88, 0.07, 0.05], ["glass bowl", "chef", "slippery"])
    assert "'glass bowl' 88 %, 'chef' 7 %, 'slippery' 5 %" in picture.alt_text
    assert {"glass bowl 88 %", "chef\n7 %", "slippery"} <= set(texts(picture))


def test_a_word_keeps_its_colour_from_picture_to_picture():
    words = ["glass", "bowl", "tile", "floor"]

    def colours(weights):
        pieces = heatmaps.budget_bars(weights, words).axes[0].containers
        return {piece.get_label(): piece[0].get_facecolor() for piece in pieces if piece.get_label() in words}

    every_word = colours([0.4, 0.3, 0.2, 0.1])
    assert len(set(every_word.values())) == 4
    for weights in ([0.0, 0.5, 0.3, 0.2], [0.02, 0.4, 0.3, 0.28], [0.02, 0.01, 0.07, 0.9]):
        assert colours(weights).items() <= every_word.items()


@pytest.mark.parametrize(
    ("weights", "legend"),
    [
        ([0.6, 0.37, 0.03], ["a", "b", "c"]),
        ([0.03, 0.97, 0.0], ["a", "b"]),
        ([0.02, 0.95, 0.03], ["b", "2 others"]),
        ([0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], [*"abcdefgh", "1 other"]),
    ],
)
def test_a_single_small_word_is_named_while_there_are_colours(weights, legend):
    picture = heatmaps.budget_bars(weights, list("abcdefghi")[: len(weights)])
    assert [text.get_text() for text in picture.axes[0].get_legend().get_texts()] == legend


def test_the_words_about_a_budget_put_together_two_tokens_or_more():
    five, six = [0.4, 0.3, 0.1, 0.1, 0.1], [0.3, 0.3, 0.1, 0.1, 0.1, 0.1]
    assert "'d' 10 %, 'e' 10 %." in heatmaps.budget_bars(five, list("abcde")).alt_text
    assert "'d' 10 %, 2 others 20 %." in heatmaps.budget_bars(six, list("abcdef")).alt_text


def test_a_budget_may_be_overspent_by_rounding_only():
    heatmaps.budget_bars([0.502, 0.502], ["a", "b"])
    with pytest.raises(ValueError, match=r"row 1 sums to 1\.3"):
        heatmaps.budget_bars([[0.5, 0.5], [0.65, 0.65]], ["a", "b"])


# Masks


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (np.tri(4, dtype=bool), "Causal: each query sees itself and the past"),
        (np.tri(2, 5, 3, dtype=bool), "Causal: each query sees itself and the past, aligned to the end"),
        (np.tri(2, 5, dtype=bool), "aligned to the top left"),
        (np.tri(4, dtype=bool).T, "upper triangle"),
        (np.ones((3, 4), bool), "Every query may attend to every key"),
        (np.zeros((3, 4), bool), "No query may attend to anything"),
        (np.array([[True, True, False]]), "the same 2 of 3 keys"),
        (np.array([[True, False], [False, False]]), "1 query may see nothing"),
    ],
)
def test_the_alternative_text_of_a_mask_names_its_pattern(keep, words):
    assert words in heatmaps.mask_map(keep).alt_text


def test_a_mask_is_told_by_signs_and_counts_not_by_colour_alone():
    picture = heatmaps.mask_map(np.tri(12, dtype=bool), SENTENCE[:12])
    assert texts(picture).count("✓") == 78 and texts(picture).count("×") == 66
    assert "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12" in picture.alt_text
    assert {"✓ may attend", "× may not attend", *SENTENCE[:12]} <= set(texts(picture))


# Tensors and memory


def boxes(picture):
    return [patch for patch in picture.axes[0].patches if isinstance(patch, Rectangle)]


def colour_by_text(picture):
    """The colour of the box under each text."""
    axes = picture.axes[0]
    colours = {}
    for box in boxes(picture):
        middle = box.get_x() + box.get_width() / 2, box.get_y() + box.get_height() / 2
        (text,) = [t for t in axes.texts if np.allclose(t.get_position(), middle)]
        colours.setdefault(text.get_text(), []).append(box.get_facecolor())
    return colours


def test_every_entry_is_a_box_in_the_colour_of_its_token():
    tensor = token_tensor()
    for entries in (tensor, tensor.reshape(5, 3, 2).transpose(1, 0, 2)):
        colours = colour_by_text(heatmaps.tensor_map(entries))
        assert sorted(colours) == sorted(tensor.flat)
        by_token = [{colours[entry][0] for entry in row} for row in tensor]
        assert all(len(found) == 1 for found in by_token) and len(set.union(*by_token)) == 5


def test_mixed_up_entries_are_hatched_bordered_and_named():
    tensor = token_tensor()
    right, wrong = tensor.reshape(5, 3, 2).transpose(1, 0, 2), tensor.reshape(3, 5, 2)
    picture = heatmaps.tensor_map(wrong, highlight=wrong != right)
    marked = [box for box in boxes(picture) if box.get_hatch()]
    assert len(marked) == (wrong != right).sum() == 24
    assert min(box.get_linewidth() for box in marked) > 2 * max(
        box.get_linewidth() for box in boxes(picture) if not box.get_hatch()
    )
    assert "24 of 30 entries mixed up" in picture.alt_text
    assert "Head 1, token 0: t1s4 t1s5; mixed up: t1s4, t1s5" in picture.alt_text


MEMORY = torch.arange(30)
VIEWS = {
    "rows": MEMORY.view(5, 6),
    "transposed": MEMORY.view(5, 6).T,
    "heads": MEMORY.view(5, 3, 2).transpose(0, 1),
    "every other": MEMORY.view(5, 6)[::2, ::3],
    "expanded": MEMORY[:6].view(1, 6).expand(4, 6),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_the_grid_of_a_view_holds_the_memory_cells_that_the_view_reads(view):
    picture = heatmaps.stride_map(view.shape, view.stride())
    memory_cells = int(view.max()) + 1
    grid = boxes(picture)[memory_cells:]
    axes = picture.axes[0]
    at = {tuple(np.round(t.get_position(), 6)): t.get_text() for t in axes.texts}
    shown = [at[tuple(np.round((b.get_x() + b.get_width() / 2, b.get_y() + b.get_height() / 2), 6))] for b in grid]
    assert [int(text) for text in shown] == view.flatten().tolist()
    assert ("straight through memory" in picture.alt_text) == view.is_contiguous()


# What comes in


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_torch_tensors_are_drawn_like_arrays_and_stay_as_they_are(dtype):
    weights = torch.softmax(torch.randn(4, 4, generator=torch.manual_seed(0)), -1).to(dtype).requires_grad_()
    before = weights.detach().clone()
    picture = heatmaps.attention_map(weights, list("abcd"))
    assert picture.alt_text == heatmaps.attention_map(before.double().numpy(), list("abcd")).alt_text
    assert torch.equal(weights, before) and weights.requires_grad
    assert heatmaps.mask_map(torch.ones(2, 2).tril().bool()).alt_text.count("Causal") == 1
    heatmaps.head_grid(weights[None])
    heatmaps.budget_bars(weights[0], list("abcd"))


def test_arrays_that_may_not_be_written_are_never_written():
    weights, mask, tensor = random_weights(2, 5, 5), np.tri(5, dtype=bool), token_tensor()
    for array in (weights, mask, tensor):
        array.setflags(write=False)
    tokens = SENTENCE[:5]
    heatmaps.head_grid(weights, tokens)
    heatmaps.attention_map(weights[0], tokens)
    heatmaps.budget_bars(weights[0], tokens)
    heatmaps.mask_map(mask, tokens)
    heatmaps.tensor_map(tensor, highlight=np.zeros(tensor.shape, bool))
    assert tokens == SENTENCE[:5]


NAN_IN_ROW_2 = np.full((4, 4), 0.25)
NAN_IN_ROW_2[2, 1] = np.nan
UNIFORM = np.full((3, 3), 1 / 3)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: heatmaps.attention_map(np.ones((2, 3, 3)) / 3), r"one head.*shape \(2, 3, 3\)"),
        (lambda: heatmaps.head_grid(UNIFORM), r"attention_map.*shape \(3, 3\)"),
        (lambda: heatmaps.budget_bars(np.ones((2, 3, 3)) / 3, list("abc")), r"\(R, T\).*shape \(2, 3, 3\)"),
        (lambda: heatmaps.attention_map(np.zeros((0, 3))), r"no entries"),
        (lambda: heatmaps.attention_map([[1.0], [0.5, 0.5]]), "all rows of one length"),
        (lambda: heatmaps.attention_map(UNIFORM > 0), "mask_map"),
        (lambda: heatmaps.attention_map([["a"]]), "real numbers"),
        (lambda: heatmaps.attention_map(NAN_IN_ROW_2), r"row 2, column 1 are NaN"),
        (lambda: heatmaps.head_grid(np.stack([UNIFORM, -UNIFORM])), r"head 1, row 0.*negative.*[Ss]oftmax"),
        (lambda: heatmaps.attention_map(UNIFORM * 12), r"4, which is more than 1.*[Ss]oftmax"),
        (lambda: heatmaps.attention_map(UNIFORM, list("ab")), "2 tokens do not match 3 queries"),
        (lambda: heatmaps.attention_map(UNIFORM, list("abc"), list("abcd")), "4 tokens do not match 3 keys"),
        (lambda: heatmaps.attention_map(UNIFORM[:2], list("ab")), "cannot label 3 keys: pass key_tokens"),
        (lambda: heatmaps.attention_map(UNIFORM, "abc"), "list of strings"),
        (lambda: heatmaps.head_grid(UNIFORM[None], titles=list("ab")), "2 titles do not match 1 heads"),
        (lambda: heatmaps.budget_bars(UNIFORM, list("abc"), ["one"]), "1 row_labels do not match 3 rows"),
        (lambda: heatmaps.mask_map(np.tri(3)), "boolean.*float64"),
        (lambda: heatmaps.mask_map(np.ones((2, 1, 3), bool)), r"shape \(2, 1, 3\)"),
        (lambda: heatmaps.tensor_map(["a", "b"]), r"shape \(2,\)"),
        (lambda: heatmaps.tensor_map(np.zeros((40, 40))), "1600"),
        (lambda: heatmaps.tensor_map(UNIFORM, highlight=np.ones((3, 2), bool)), r"shape \(3, 3\).*\(3, 2\)"),
        (lambda: heatmaps.stride_map((5, 6), (48, 8)), "count bytes"),
        (lambda: heatmaps.stride_map((5,), (1,)), "2 or 3 numbers"),
        (lambda: heatmaps.stride_map((5, 6), (6, -1)), "at least 0"),
    ],
)
def test_a_wrong_input_is_refused_with_what_was_wrong(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


@every_picture
def test_while_a_class_is_graded_a_picture_is_its_words(draw, monkeypatch):
    drawn = draw()
    monkeypatch.setenv(WITHOUT_PICTURES, "1")
    said = draw()
    bundle, _ = said._repr_mimebundle_()
    assert said.alt_text == drawn.alt_text == bundle["text/plain"]
    assert "<img" not in bundle["text/html"] and "image/png" not in bundle
