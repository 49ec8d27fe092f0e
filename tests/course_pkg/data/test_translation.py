"""The translation data: true alignments, agreement, disjoint splits, batches, real files."""

import random
from collections import Counter

import pytest
import torch

from course_pkg.data import grammar
from course_pkg.data.translation import (
    BOS,
    EOS,
    PAD,
    UNK,
    DataError,
    Pair,
    Vocabulary,
    english_spanish,
    read_parallel,
)


@pytest.fixture(scope="module")
def corpus():
    return english_spanish(train=2000, test=300, seed=3)


def test_sentences_have_all_lengths_and_none_comes_twice(corpus):
    pairs = corpus.train + corpus.test
    assert (len(corpus.train), len(corpus.test)) == (2000, 300)
    assert len({pair.source for pair in pairs}) == 2300
    counts = Counter(len(pair.source) for pair in pairs)
    assert set(counts) == set(range(4, 31))
    assert min(counts.values()) > 2300 / 27 / 2


def test_the_seed_decides(corpus):
    assert english_spanish(50, 5, seed=1) != english_spanish(50, 5, seed=2)
    again = english_spanish(train=2000, test=300, seed=3)
    assert again.train == corpus.train and again.test == corpus.test


def test_every_word_of_the_lexicon_is_used(corpus):
    assert 100 < len(corpus.source) < 130 and 150 < len(corpus.target) < 190


def lexicon() -> dict[str, set[str]]:
    """For each Spanish word the English words that it may translate."""
    found = {}

    def add(spanish, *english):
        found.setdefault(spanish, set()).update(english)

    for english, spanish in grammar._NAMES + grammar._ADVERBS:
        add(spanish, english)
    for english, spanish in grammar._PREPOSITIONS + grammar._CONJUNCTIONS:
        add(spanish, english)
    for english, *forms in grammar._SINGULAR + grammar._PLURAL:
        for form in forms:
            add(form, *({"a", "an"} if english == "a" else {english}))
    for singular, plural, one, many, _ in grammar._ACTORS + grammar._OBJECTS:
        add(one, singular)
        add(many, plural)
    for english, *forms in grammar._ADJECTIVES:
        for form in forms:
            add(form, english)
    for plain, third, one, many, future in grammar._VERBS:
        add(one, third)
        add(many, plain)
        add(future, plain)
        add(future + "n", plain)
    return found


def test_alignments_lead_to_the_translated_word(corpus):
    known = lexicon()
    for pair in corpus.test:
        assert len(pair.alignment) == len(pair.target)
        assert len(set(pair.alignment)) == len(pair.target)
        for word, place in zip(pair.target, pair.alignment, strict=True):
            assert pair.source[place] in known[word], (pair, word)
        left = [pair.source[i] for i in range(len(pair.source)) if i not in pair.alignment]
        assert set(left) <= {"will"}


def test_alignments_cross_where_there_are_adjectives(corpus):
    crossing = [
        pair
        for pair in corpus.test
        if any(b < a for a, b in zip(pair.alignment, pair.alignment[1:], strict=False))
    ]
    assert 0.5 < len(crossing) / len(corpus.test) < 1
    adjectives = {adjective[0] for adjective in grammar._ADJECTIVES}
    for pair in corpus.test:
        assert (pair in crossing) == bool(adjectives & set(pair.source))


def test_determiners_and_adjectives_agree_with_their_noun(corpus):
    genders = {
        form: (gender, plural)
        for *forms, gender in grammar._ACTORS + grammar._OBJECTS
        for plural, form in enumerate(forms[2:])
    }
    determiners = {
        (form, gender, plural)
        for plural, words in enumerate([grammar._SINGULAR, grammar._PLURAL])
        for _, *forms in words
        for gender, form in enumerate(forms)
    }
    adjectives = {
        (form, number % 2, number // 2)
        for _, *forms in grammar._ADJECTIVES
        for number, form in enumerate(forms)
    }
    forms_of_adjectives = {form for form, _, _ in adjectives}
    seen = 0
    for pair in corpus.test:
        for place, word in enumerate(pair.target):
            if word not in genders:
                continue
            seen += 1
            assert (pair.target[place - 1], *genders[word]) in determiners, pair
            rest = pair.target[place + 1 :]
            for after in rest[:2]:
                if after not in forms_of_adjectives:
                    break
                assert (after, *genders[word]) in adjectives, pair
    assert seen > 500


def test_verbs_agree_with_their_subject(corpus):
    singular = {third: forms for _, third, *forms in grammar._VERBS}
    for pair in corpus.test:
        for word, place in zip(pair.target, pair.alignment, strict=True):
            if pair.source[place] in singular:
                assert word == singular[pair.source[place]][0]
    futures = {forms[-1] for forms in singular.values()}
    singulars = {english for english, _ in grammar._NAMES}
    plurals = {"two", "many", "some", "these"}
    begins = {None, *(english for english, _ in grammar._CONJUNCTIONS)}
    seen = Counter()
    for pair in corpus.train:
        words = [None, *pair.source]
        for place, word in enumerate(words):
            one = word in singulars and words[place + 1 : place + 2] == ["will"]
            many = word in plurals and words[place + 2 : place + 3] == ["will"]
            if words[place - 1] in begins and (one or many):
                verb = place + 1 + many  # of the English words without None
                verb += pair.source[verb] in {english for english, _ in grammar._ADVERBS}
                form = pair.target[pair.alignment.index(verb)]
                assert form.removesuffix("n") in futures and form.endswith("n") == many, pair
                seen[many] += 1
    assert min(seen[False], seen[True]) > 20


def test_english_has_an_before_a_vowel(corpus):
    for pair in corpus.train:
        for article, word in zip(pair.source, pair.source[1:], strict=False):
            if article in ("a", "an"):
                assert (article == "an") == (word[0] in "aeiou"), pair


@pytest.mark.parametrize("length", [4, 5, 17, 30])
def test_a_sentence_has_the_length_that_is_asked_for(length):
    rng = random.Random(length)
    for _ in range(50):
        english, spanish, alignment = grammar.sentence(rng, length)
        assert len(english) == length and len(spanish) == len(alignment) <= length


def test_batches_are_padded_and_can_be_read_back(corpus):
    pairs = corpus.test[:20]
    X, lengths, Y = corpus.batch(pairs)
    assert X.shape == (20, max(len(pair.source) for pair in pairs) + 1)
    for row, pair in enumerate(pairs):
        n = len(pair.source)
        assert lengths[row] == n + 1 and X[row, n] == EOS
        assert (X[row, n + 1 :] == PAD).all() and (X[row, :n] > UNK).all()
        assert Y[row, 0] == BOS and Y[row, len(pair.target) + 1] == EOS
        assert tuple(corpus.source.decode(X[row])) == pair.source
        assert tuple(corpus.target.decode(Y[row])) == pair.target


def test_drawn_batches_have_similar_lengths_and_miss_no_length(corpus):
    generator = torch.Generator().manual_seed(0)
    seen, spread = Counter(), []
    for _ in range(200):
        X, lengths, Y = corpus.draw(16, generator)
        assert len(X) == len(Y) == 16
        seen.update(lengths.tolist())
        spread.append(int(lengths.max() - lengths.min()))
    assert set(seen) == set(range(5, 32))
    assert max(seen.values()) < 4 * min(seen.values())
    assert sum(spread) / len(spread) < 6
    one, two = (corpus.draw(4, torch.Generator().manual_seed(1)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_vocabulary():
    vocabulary = Vocabulary.of([["b", "a"], ["a"], ["c", "a", "b"]], min_count=2)
    assert vocabulary.words == ["<pad>", "<bos>", "<eos>", "<unk>", "a", "b"]
    assert vocabulary.encode(["a", "c"]) == [4, UNK]
    assert vocabulary.decode(torch.tensor([BOS, 5, PAD, UNK, EOS, 4])) == ["b", "<unk>"]
    with pytest.raises(ValueError, match="every word must occur once"):
        Vocabulary(["a", "a"])
    with pytest.raises(ValueError, match="no mark among them"):
        Vocabulary(["<pad>"])


def test_too_few_sentences_are_refused():
    with pytest.raises(ValueError, match="at least 1, got 0 and 5"):
        english_spanish(train=0, test=5)


LINES = [
    ("Zwei Männer sehen ein Haus.", "Two men see a house."),
    ("Ein Mädchen lacht!", "A girl laughs!"),
    ("", "Nobody is there."),
    ("Ein Mädchen lacht!", "The girl is laughing!"),
    ("Es ist's.", "That's a well-known dog."),
    ("Ein Hund", "A dog"),
    ("viel " * 40, "much " * 40),
]


@pytest.fixture
def files(tmp_path):
    """Write two parallel files with all that real ones may have."""

    def write(encoding="utf-8", newline="\n", lines=LINES):
        for side, name in enumerate(["text.de", "text.en"]):
            content = newline.join(pair[side] for pair in lines) + newline
            (tmp_path / name).write_bytes(content.encode(encoding))
        return tmp_path / "text.de", tmp_path / "text.en"

    return write


@pytest.mark.parametrize(
    ("encoding", "newline"), [("utf-8", "\n"), ("utf-8-sig", "\r\n")], ids=["plain", "windows"]
)
def test_real_text(files, encoding, newline):
    corpus = read_parallel(*files(encoding, newline), test=1, min_count=1)
    pairs = corpus.train + corpus.test
    assert len(corpus.test) == 1 and len(pairs) == 4
    assert Pair(("ein", "mädchen", "lacht", "!"), ("a", "girl", "laughs", "!")) in pairs
    assert Pair(("es", "ist's", "."), ("that's", "a", "well-known", "dog", ".")) in pairs
    assert all(pair.alignment is None for pair in pairs)
    Y = corpus.batch(corpus.train).Y
    assert corpus.target.decode(Y[0]) == list(corpus.train[0].target)
    assert corpus.draw(2, torch.Generator().manual_seed(0)).X.shape[0] == 2


def test_real_text_is_split_by_its_seed(files):
    paths = files()
    tests = {read_parallel(*paths, test=1, seed=seed).test[0] for seed in range(10)}
    assert len(tests) > 1
    assert read_parallel(*paths, test=1, seed=3).test == read_parallel(*paths, test=1, seed=3).test


def test_rare_words_and_words_of_the_test_are_unknown(files):
    corpus = read_parallel(*files(), test=1, min_count=2)
    counts = Counter(word for pair in corpus.train for word in pair.source)
    assert set(corpus.source.words[4:]) == {word for word, count in counts.items() if count >= 2}
    assert len(corpus.batch(corpus.test).X) == 1


def test_composed_and_decomposed_letters_are_the_same(files):
    corpus = read_parallel(
        *files(lines=[("señor", "sir"), ("sen\u0303or", "sir"), ("a", "b")]), test=1
    )
    assert len(corpus.train) + len(corpus.test) == 2


def test_files_that_cannot_be_used_are_explained(files, tmp_path):
    source, target = files()
    with pytest.raises(DataError, match=r"missing.de cannot be read: No such file"):
        read_parallel(tmp_path / "missing.de", target)
    short = tmp_path / "short.en"
    short.write_text("one line\n")
    with pytest.raises(DataError, match=r"text.de has 7 lines and .*short.en has 1; line n of one"):
        read_parallel(source, short)
    with pytest.raises(
        DataError, match=r"give 4 different pairs of at most 30 words; more than tes"
    ):
        read_parallel(source, target, test=4)
    latin = tmp_path / "latin.de"
    latin.write_bytes("\n".join(pair[0] for pair in LINES).encode("latin-1") + b"\n")
    with pytest.raises(
        DataError, match=r"latin.de, line 1: not UTF-8; is it compressed or Latin-1"
    ):
        read_parallel(latin, target)
