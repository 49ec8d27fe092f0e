"""Pictures: what comes with packages, CIFAR-10's files, splits and shifts."""

import numpy as np
import pytest
import torch

from course_pkg.data.images import CIFAR10, ImageFileError, cifar10, digits, mnist, shift


def source(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("load", "count", "side"), [(digits, 1797, 8), (mnist, 5000, 28)])
def test_packages_carry(load, count, side):
    data = load()
    assert data.images.shape == (count, 1, side, side) and data.images.dtype == torch.float32
    assert data.images.min() == 0 and data.images.max() == 1
    assert data.labels.bincount().min() > 0.09 * count
    middle = data.images[:, 0, side // 2].mean(0)  # ink is in the middle, not at the left edge
    assert middle[side // 2] > 10 * middle[0]


def test_one_digit_is_what_its_label_says():
    one = digits().images[digits().labels == 1].mean(0)[0]
    zero = digits().images[digits().labels == 0].mean(0)[0]
    assert one[3:5, 3:5].mean() > 3 * zero[3:5, 3:5].mean()


def test_split_keeps_every_picture_once_with_its_label():
    data = digits()
    train, test = data.split(497, source())
    assert (len(train), len(test)) == (1300, 497)
    assert rows(train) + rows(test) != rows(data)  # shuffled
    assert sorted(rows(train) + rows(test)) == sorted(rows(data))


def rows(data):
    return torch.cat([data.images.flatten(1), data.labels[:, None]], dim=1).tolist()


def test_few_draws_equally_many_of_each_class():
    few = digits().few(7, source())
    assert few.labels.bincount().tolist() == [7] * 10
    assert not torch.equal(few.images, digits().few(7, source(1)).images)


def test_batch_draws_with_replacement():
    few = digits().few(1, source())
    images, labels = few.batch(64, source())
    assert images.shape == (64, 1, 8, 8)
    assert all(
        torch.equal(few.images[few.labels == n][0], x) for x, n in zip(images, labels, strict=True)
    )


@pytest.mark.parametrize("count", [0, 1797])
def test_split_refuses_an_empty_part(count):
    with pytest.raises(ValueError, match=f"between 1 and 1796, got {count}"):
        digits().split(count, source())


@pytest.mark.parametrize("per_class", [0, 175])
def test_few_refuses_what_is_not_there(per_class):
    with pytest.raises(ValueError, match=f"per_class must lie between 1 and 174, got {per_class}"):
        digits().few(per_class, source())


def test_shift_pastes_each_picture_whole():
    images = torch.rand(5, 2, 3, 3, generator=source()) + 0.1
    shifted = shift(images, 7, source())
    assert shifted.shape == (5, 2, 7, 7)
    places = set()
    for image, canvas in zip(images, shifted, strict=True):
        rows, columns = (canvas[0] > 0).nonzero().unbind(1)
        top, left = int(rows.min()), int(columns.min())
        assert torch.equal(canvas[:, top : top + 3, left : left + 3], image)
        assert torch.isclose(canvas.sum(), image.sum())
        places.add((top, left))
    assert len(places) > 1


def test_shift_reaches_every_place_alike():
    shifted = shift(torch.ones(9000, 1, 2, 2), 4, source())
    corners = shifted[:, 0].flatten(1).argmax(1).bincount()
    assert (corners > 0).sum() == 9 and corners[corners > 0].min() > 900


def test_shift_refuses_a_small_canvas():
    with pytest.raises(ValueError, match="at least the pictures' 8, got 7"):
        shift(digits().images, 7, source())


@pytest.fixture
def folder(tmp_path):
    """CIFAR-10's files with four pictures each."""
    random = np.random.default_rng(0)
    for number, name in enumerate(CIFAR10["train"] + CIFAR10["test"]):
        records = random.integers(0, 256, (4, 3073), dtype=np.uint8)
        records[:, 0] = [number, 1, 2, 3]
        records.tofile(tmp_path / name)
    names = "airplane automobile bird cat deer dog frog horse ship truck"
    (tmp_path / "batches.meta.txt").write_text("\n".join(names.split()) + "\n\n")
    return tmp_path


def test_cifar10_reads_its_own_format(folder):
    train, test = cifar10(folder)
    assert train.images.shape == (20, 3, 32, 32) and test.images.shape == (4, 3, 32, 32)
    assert train.labels.tolist()[::4] == [0, 1, 2, 3, 4] and test.labels[0] == 5
    assert train.classes[3] == "cat"
    raw = (folder / "data_batch_2.bin").read_bytes()
    start = 3073 + 1 + 1024 + 32 * 5 + 7  # the second picture's green, sixth row, eighth column
    assert train.images[5, 1, 5, 7] == raw[start] / 255


def test_cifar10_says_which_file_is_missing(folder):
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no data_batch_3.bin: unpack"):
        cifar10(folder)


def test_cifar10_refuses_a_cut_file(folder):
    path = folder / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ImageFileError, match="is truncated: 12291 bytes are no multiple of 3073"):
        cifar10(folder)


def test_cifar10_refuses_a_label_of_none(folder):
    path = folder / "test_batch.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(ImageFileError, match="has a label 10; labels go from 0 to 9"):
        cifar10(folder)


def test_cifar10_refuses_other_classes(folder):
    (folder / "batches.meta.txt").write_text("cat\ndog\n")
    with pytest.raises(ImageFileError, match="names 2 classes, not 10"):
        cifar10(folder)
