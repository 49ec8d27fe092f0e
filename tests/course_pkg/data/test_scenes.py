"""Scenes show what their captions say, and files in COCO's format become the same kind of thing."""

import doctest
import json

import pytest
import torch
from PIL import Image

from course_pkg.data import coco, scenes
from course_pkg.data.scenes import CELL, COLOURS, END, HELD_OUT, PAD, START, VOCABULARY


@pytest.fixture(scope="module", params=[True, False], ids=["aligned", "free"])
def drawn(request):
    return scenes.draw(300, generator=1, aligned=request.param)


def test_examples_of_the_docstrings():
    failed, attempted = doctest.testmod(scenes)
    assert failed == 0 and attempted >= 8


def test_equal_arguments_give_equal_scenes_and_other_seeds_others():
    first, second = scenes.draw(50, generator=3), scenes.draw(50, torch.Generator().manual_seed(3))
    assert torch.equal(first.images, second.images) and first.objects == second.objects
    assert not torch.equal(first.captions, scenes.draw(50, generator=4).captions)


def test_captions_are_the_objects_names_and_their_relation(drawn):
    for scene in map(drawn.__getitem__, range(len(drawn))):
        first, second = scene.objects
        assert [scene.words[n] for n in first.words] == first.name.split()
        assert [scene.words[n] for n in second.words] == second.name.split()
        y, x = (
            [(item.region[axis] + item.region[axis + 2]) / 2 for item in scene.objects]
            for axis in (0, 1)
        )
        gaps = abs(y[0] - y[1]), abs(x[0] - x[1])
        assert min(gaps) < 4 and max(gaps) >= 5
        vertical = gaps[0] > gaps[1]
        relation = "above" if vertical else "left of"
        assert " ".join(scene.words) == f"a {first.name} {relation} a {second.name}"
        assert y[0] < y[1] if vertical else x[0] < x[1]


def test_regions_hold_the_objects_pixels_and_nothing_is_elsewhere(drawn):
    for scene in map(drawn.__getitem__, range(len(drawn))):
        outside = torch.ones(32, 32, dtype=torch.bool)
        for item in scene.objects:
            top, left, bottom, right = item.region
            assert bottom - top == right - left == (5 if "small" in item.name else 7)
            assert 0 <= top and bottom <= 32 and 0 <= left and right <= 32
            colour = COLOURS[item.name.split()[-2]]
            centre = scene.image[:, (top + bottom) // 2, (left + right) // 2]
            torch.testing.assert_close(centre, torch.tensor(colour))
            assert outside[top:bottom, left:right].all(), "objects overlap"
            outside[top:bottom, left:right] = False
        assert scene.image[:, outside].max() < 0.15 < scene.image.max()
        assert scene.image.min() >= 0 and scene.image.max() <= 1


def test_aligned_objects_lie_inside_one_cell_each():
    for objects in scenes.draw(300, generator=1).objects:
        cells = [[edge // CELL for edge in item.region[:2]] for item in objects]
        last = [[(edge - 1) // CELL for edge in item.region[2:]] for item in objects]
        assert cells == last and cells[0] != cells[1]


def test_every_kind_of_object_is_drawn_unless_it_is_held_out():
    def pairs(found):
        return {tuple(item.name.split()[-2:]) for objects in found.objects for item in objects}

    assert len(pairs(scenes.draw(1000, generator=0))) == 24 - len(HELD_OUT)
    assert pairs(scenes.draw(1000, generator=0)).isdisjoint(HELD_OUT)
    assert pairs(scenes.draw(100, generator=0, held_out=True)) == set(HELD_OUT)


def test_shapes_differ():
    masks = [scenes._mask(shape, side) for side in (5, 7) for shape in scenes.SHAPES]
    for number, mask in enumerate(masks):
        assert 0.2 < mask.mean() and mask.min() >= 0 and mask.max() <= 1
        assert all(a.shape != mask.shape or (a - mask).abs().max() > 0.5 for a in masks[:number])


def test_named_marks_one_cell_for_each_word_of_an_object():
    found = scenes.draw(200, generator=2)
    named = found.named(4, 4)
    assert named.shape == (200, found.captions.shape[1] - 1, 16)
    for number, scene in enumerate(map(found.__getitem__, range(200))):
        expected = torch.zeros_like(named[number])
        for item in scene.objects:
            top, left = (edge // CELL for edge in item.region[:2])
            for word in item.words:
                # The target at position t is token t + 1; token 1 is word 0.
                target = found.captions[number, 1:][word]
                assert found.vocabulary.words[target] in item.name.split()
                expected[word, 4 * top + left] = True
        assert torch.equal(named[number], expected)


def test_batches_are_pictures_with_their_captions():
    found = scenes.draw(40, generator=0)
    images, captions = found.batch(64, torch.Generator().manual_seed(5))
    assert images.shape == (64, 3, 32, 32)
    for image, caption in zip(images, captions, strict=True):
        (row,) = [n for n in range(40) if torch.equal(found.images[n], image)]
        assert torch.equal(found.captions[row], caption)


def test_captions_start_end_and_are_padded():
    captions = scenes.draw(100, generator=0).captions
    assert (captions[:, 0] == START).all() and ((captions == END).sum(dim=1) == 1).all()
    after = (captions == END).cumsum(dim=1) - (captions == END).long()
    assert torch.equal(captions == PAD, after.bool()) and (captions == PAD).any()


def test_vocabulary_reads_what_it_writes():
    words = "a small red circle above a blue square".split()
    tokens = VOCABULARY.encode(words)
    assert VOCABULARY.decode([*tokens, PAD, PAD]) == words
    assert VOCABULARY.decode(VOCABULARY.encode(["a", "dog"])) == ["a", "<unknown>"]
    assert VOCABULARY.decode(tokens[:4]) == words[:3]
    with pytest.raises(ValueError, match="each word once"):
        scenes.Vocabulary(["a", "a"])


def test_draw_refuses_no_scenes():
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        scenes.draw(0, generator=0)


# COCO's format


@pytest.fixture
def files(tmp_path):
    """Two images, three captions."""
    picture = Image.new("RGB", (60, 40), (255, 0, 0))
    picture.paste((0, 0, 255), (30, 0, 60, 40))
    picture.save(tmp_path / "one.png")
    Image.new("L", (20, 50), 102).save(tmp_path / "two.png")
    content = {
        "images": [{"id": 7, "file_name": "one.png"}, {"id": 9, "file_name": "two.png"}],
        "annotations": [
            {"image_id": 9, "caption": "A grey wall."},
            {"image_id": 7, "caption": "Red and blue, a flag's colours"},
            {"image_id": 9, "caption": "a WALL"},
        ],
    }
    return tmp_path, write(tmp_path, content), content


def write(folder, content):
    path = folder / "captions.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_coco_files_become_scenes(files):
    folder, path, _ = files
    found = coco.load(folder, path, side=8, min_count=1)
    assert len(found) == 3 and found.images.shape == (3, 3, 8, 8)
    assert [found[n].words for n in range(3)] == [
        ["a", "grey", "wall"],
        ["red", "and", "blue", "a", "flag's", "colours"],
        ["a", "wall"],
    ]
    torch.testing.assert_close(found.images[0], torch.full((3, 8, 8), 0.4))
    assert torch.equal(found.images[0], found.images[2])
    left, right = found.images[1][:, :, 0], found.images[1][:, :, -1]
    torch.testing.assert_close(left, torch.tensor([1.0, 0, 0])[:, None].expand(3, 8))
    torch.testing.assert_close(right, torch.tensor([0.0, 0, 1])[:, None].expand(3, 8))
    assert found[1].objects == () and not found.named(4, 4).any()
    images, captions = found.batch(5, torch.Generator().manual_seed(0))
    assert images.shape == (5, 3, 8, 8) and captions.shape == (5, 8)


def test_coco_vocabulary_limit_and_rare_words(files):
    folder, path, _ = files
    rare = coco.load(folder, path, min_count=2)
    assert rare.vocabulary.words[4:] == ["a", "wall"]
    assert rare[0].words == ["a", "<unknown>", "wall"]
    assert len(coco.load(folder, path, limit=2)) == 2
    same = coco.load(folder, path, vocabulary=VOCABULARY)
    assert same.vocabulary is VOCABULARY and same[2].words == ["a", "<unknown>"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "captions.json: is not JSON"),
        ({"annotations": []}, "'images' is missing; is it a caption file, like captions_val"),
        ({"images": [], "annotations": [{"image_id": 1}]}, "'caption' is missing; is it a caption"),
        ([1, 2], "is not laid out like COCO's captions_val2017.json"),
        ({"images": [], "annotations": []}, "captions.json: holds no captions"),
        (
            {"images": [], "annotations": [{"image_id": 1, "caption": "a"}]},
            "a caption's image 1 is not in 'images'",
        ),
    ],
)
def test_coco_refuses_other_json(tmp_path, content, message):
    with pytest.raises(coco.DataError, match=message):
        coco.load(tmp_path, write(tmp_path, content))


def test_coco_names_missing_and_broken_files(files):
    folder, path, _ = files
    with pytest.raises(coco.DataError, match=r"none.json: cannot be read: No such file"):
        coco.load(folder, folder / "none.json")
    (folder / "one.png").write_bytes(b"not a picture")
    with pytest.raises(coco.DataError, match=r"one.png: is not an image that can be read"):
        coco.load(folder, path)
    (folder / "one.png").unlink()
    with pytest.raises(coco.DataError, match=r"one.png: cannot be read: No such file"):
        coco.load(folder, path)
    two = (folder / "two.png").read_bytes()
    (folder / "two.png").write_bytes(two[:50])  # the header, and a beginning of the pixels
    with pytest.raises(coco.DataError, match=r"two.png: cannot be read"):
        coco.load(folder, path)


@pytest.mark.parametrize("option", ["side", "limit", "min_count"])
def test_coco_refuses_sizes_below_one(files, option):
    folder, path, _ = files
    with pytest.raises(coco.DataError, match=f"{option} must be at least 1, got 0"):
        coco.load(folder, path, **{option: 0})
