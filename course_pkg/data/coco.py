"""Photographs with captions from files in COCO's format, as the same Scenes that we draw.

COCO's files (cocodataset.org) are a folder of images, such as val2017, and a caption annotation
file, such as captions_val2017.json. Any images with such a file will do.
"""

import json
import re
from collections import Counter
from pathlib import Path

import torch
from jaxtyping import Float
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from course_pkg.data.scenes import Scenes, Vocabulary


class DataError(ValueError):
    """A file does not hold what it should; the message names the file and what is wrong."""


def load(
    folder: str | Path,
    annotations: str | Path,
    *,
    side: int = 64,
    limit: int | None = None,
    min_count: int = 5,
    vocabulary: Vocabulary | None = None,
) -> Scenes:
    """Read images and their captions, one scene for each caption.

    Captions become lower-case words without punctuation. Caption files don't say where things are,
    so the scenes' objects are empty.

    Example:
        >>> train = load("train2017", "captions_train2017.json", limit=10_000)
        >>> test = load("val2017", "captions_val2017.json", vocabulary=train.vocabulary)

    Args:
        folder: where the images are.
        annotations: the JSON file; it lists "images" with "id" and "file_name", and
            "annotations" with "image_id" and "caption".
        side: images are cropped to a central square and scaled to this many pixels a side.
        limit: how many captions to read, the file's first; all when None.
        min_count: a word that occurs less often becomes <unknown>.
        vocabulary: the words to use, of the training set for example; when None, those of these
            captions, the most frequent first.
    Returns:
        The scenes, in the order of the captions in the file.
    Raises:
        DataError: a file is missing or unreadable, the JSON is not of this format or holds no
            captions, or side, limit or min_count is less than 1.
    """
    for name, value in (("side", side), ("limit", limit), ("min_count", min_count)):
        if value is not None and value < 1:
            raise DataError(f"{name} must be at least 1, got {value}")
    folder, annotations = Path(folder), Path(annotations)
    files, pairs = _read(annotations)
    pairs = pairs[:limit]
    captions = [_words(text) for _, text in pairs]
    if vocabulary is None:
        counts = Counter(word for words in captions for word in words)
        vocabulary = Vocabulary(w for w, count in counts.most_common() if count >= min_count)
    images = {}
    for number, _ in pairs:
        if number not in images:
            if number not in files:
                raise DataError(f"{annotations}: a caption's image {number} is not in 'images'")
            images[number] = _image(folder / files[number], side)
    return Scenes(
        torch.stack([images[number] for number, _ in pairs]),
        vocabulary.pad(captions),
        ((),) * len(pairs),
        vocabulary,
    )


def _read(path: Path) -> tuple[dict[int, str], list[tuple[int, str]]]:
    """Read the file name of each image, and pairs of an image and a caption."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path}: is not JSON: {error}") from None
    try:
        files = {image["id"]: image["file_name"] for image in content["images"]}
        pairs = [(note["image_id"], note["caption"]) for note in content["annotations"]]
    except KeyError as error:
        raise DataError(
            f"{path}: {error} is missing; is it a caption file, like captions_val2017.json?"
        ) from None
    except TypeError:
        raise DataError(f"{path}: is not laid out like COCO's captions_val2017.json") from None
    if not pairs:
        raise DataError(f"{path}: holds no captions")
    return files, pairs


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower())


def _image(path: Path, side: int) -> Float[Tensor, "3 side side"]:
    try:
        with Image.open(path) as image:
            square = ImageOps.fit(image.convert("RGB"), (side, side), Image.Resampling.BILINEAR)
    except UnidentifiedImageError:
        raise DataError(f"{path}: is not an image that can be read") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    pixels = torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8)
    return pixels.view(side, side, 3).permute(2, 0, 1).float() / 255
