"""The references of bert agree with transformers; facts, sentences and GLUE files are sound."""

import doctest
import math
import random
import unicodedata

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertTokenizer,
)
from transformers import BertModel as TheirModel

from course_pkg.bert import (
    BertModel,
    BertPretraining,
    SentenceClassifier,
    best_span,
    load_bert,
    mask_tokens,
    next_sentence_pairs,
    pretraining_loss,
    span_head,
    tf_idf,
)
from course_pkg.data import bert_base, facts, glue, sentences
from course_pkg.data.sentences import Vocabulary, pack
from course_pkg.data.text import EncodingError

SIZES = {"V": 61, "context": 17, "D": 20, "H": 4}


def tiny(kind, L: int = 3, **options):
    """A small BERT of transformers with random weights, biases and norms too; float64."""
    torch.manual_seed(L)
    config = BertConfig(
        vocab_size=SIZES["V"],
        hidden_size=SIZES["D"],
        num_hidden_layers=L,
        num_attention_heads=SIZES["H"],
        intermediate_size=4 * SIZES["D"],
        max_position_embeddings=SIZES["context"],
        attn_implementation="eager",
        **options,
    )
    theirs = kind(config).double().eval()
    for parameter in theirs.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return theirs


def texts() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, SIZES["V"], (5, 13))
    segments = (torch.arange(13) >= torch.randint(1, 13, (5, 1))).long()
    return tokens, segments, torch.tensor([13, 2, 7, 12, 1])


def asked(tokens, segments, lengths) -> dict:
    """The same texts, as transformers' models take them."""
    attention = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
    return {"input_ids": tokens, "token_type_ids": segments, "attention_mask": attention}


@pytest.mark.parametrize("kind", ["scale", "gamma"])
def test_weights_of_another_kind_are_refused(kind):
    name = f"bert.encoder.layer.0.attention.self.query.{kind}"
    state = tiny(BertForPreTraining, 1).state_dict() | {name: torch.ones(1)}
    with pytest.raises(ValueError, match=f"no place for {name}"):
        load_bert(state)


@pytest.mark.parametrize("L", [1, 3, 12])
def test_logits_are_those_of_transformers(L):
    theirs = tiny(BertForPreTraining, L)
    ours = BertPretraining(**SIZES, L=L).double()
    ours.load_state_dict(load_bert(theirs.state_dict()))
    batch = texts()
    words, follows = ours(*batch)
    expected = theirs(**asked(*batch))
    torch.testing.assert_close(words, expected.prediction_logits, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(follows, expected.seq_relationship_logits, rtol=1e-10, atol=1e-10)


def test_a_masked_language_model_is_loaded_without_the_other_head():
    theirs = tiny(BertForMaskedLM)
    ours = BertPretraining(**SIZES, L=3).double()
    missing = ours.load_state_dict(load_bert(theirs.state_dict()), strict=False)
    assert set(missing.missing_keys) == {
        f"{part}.{kind}" for part in ("pooler", "next_sentence") for kind in ("weight", "bias")
    }
    assert not missing.unexpected_keys
    batch = texts()
    torch.testing.assert_close(ours(*batch)[0], theirs(**asked(*batch)).logits)


def test_an_encoder_is_loaded_with_its_weights_by_head():
    theirs = tiny(TheirModel)
    state = load_bert(theirs.state_dict())
    ours = BertModel(**SIZES, L=3).double()
    encoder = {n.removeprefix("bert."): v for n, v in state.items() if n.startswith("bert.")}
    ours.load_state_dict(encoder)
    batch = texts()
    X, A = ours(*batch, return_weights=True)
    expected = theirs(**asked(*batch), output_attentions=True)
    torch.testing.assert_close(X, expected.last_hidden_state)
    torch.testing.assert_close(A, torch.stack(expected.attentions))


def test_a_classifier_starts_like_transformers_does():
    theirs = tiny(BertForSequenceClassification, num_labels=7)
    state = {n: v for n, v in theirs.state_dict().items() if not n.startswith("classifier")}
    ours = SentenceClassifier(**SIZES, L=3, C=7).double()
    ours.start_from(load_bert(state))
    ours.classifier.load_state_dict(theirs.classifier.state_dict())
    batch = texts()
    torch.testing.assert_close(ours(*batch), theirs(**asked(*batch)).logits)


def test_the_loss_is_that_of_transformers():
    theirs = tiny(BertForPreTraining)
    ours = BertPretraining(**SIZES, L=3).double()
    ours.load_state_dict(load_bert(theirs.state_dict()))
    batch = texts()
    goals = torch.where(torch.rand(5, 13) < 0.3, batch[0], -100)
    kinds = torch.tensor([0, 1, 1, 0, 1])
    words, follows = ours(*batch)
    expected = theirs(**asked(*batch), labels=goals, next_sentence_label=kinds).loss
    torch.testing.assert_close(pretraining_loss(words, goals, follows, kinds), expected)


@pytest.mark.parametrize("L", [1, 3])
def test_span_scores_are_those_of_transformers(L):
    theirs = tiny(BertForQuestionAnswering, L)
    last = theirs.qa_outputs
    encoder = {n: v for n, v in theirs.state_dict().items() if not n.startswith("qa_outputs")}
    state = {n.removeprefix("bert."): v for n, v in load_bert(encoder).items()}
    ours = BertModel(**SIZES, L=L).double()
    ours.load_state_dict(state)
    batch = texts()
    start, end = span_head(ours(*batch), *last.weight)
    expected = theirs(**asked(*batch))
    for scores, wanted, bias in (
        (start, expected.start_logits, last.bias[0]),
        (end, expected.end_logits, last.bias[1]),
    ):
        torch.testing.assert_close(scores + bias, wanted, rtol=1e-10, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 9), st.integers(1, 11))
def test_the_best_span_is_the_best_of_all(seed, B, T, longest):
    source = torch.Generator().manual_seed(seed)
    start, end = torch.randn(2, B, T, generator=source, dtype=torch.float64)
    allowed = torch.rand(B, T, generator=source) < 0.7
    allowed[:, 0] = True
    start, end = (scores.masked_fill(~allowed, -torch.inf) for scores in (start, end))
    margin = torch.randn((), generator=source, dtype=torch.float64).item()
    first, last = best_span(start, end, longest, margin)
    for b in range(B):
        scores = {(0, 0): (start[b, 0] + end[b, 0]).item() + margin}
        for i in range(1, T):
            for j in range(i, min(i + longest, T)):
                scores[i, j] = (start[b, i] + end[b, j]).item()
        assert (int(first[b]), int(last[b])) == max(scores, key=scores.get)


def test_a_tie_is_no_answer():
    start = end = torch.tensor([[1.0, 1.0], [1.0, 1.5]])
    assert [part.tolist() for part in best_span(start, end, 1)] == [[0, 1], [0, 1]]
    with pytest.raises(ValueError, match="at least one token, but longest is 0"):
        best_span(start, end, 0)


def test_bert_base_has_110_million_parameters():
    with torch.device("meta"):
        ours = BertPretraining(30522, 512, 768, 12, 12)
        theirs = BertForPreTraining(BertConfig())
    count = sum(parameter.numel() for parameter in ours.parameters())
    assert count == sum(parameter.numel() for parameter in theirs.parameters()) == 110_106_428


def test_published_weights_give_the_published_logits():
    folder = bert_base.find()
    if folder is None:
        pytest.skip(f"the weights are not in the cache: hf download {bert_base.NAME}")
    state, vocabulary = bert_base.read(folder)
    ours = BertPretraining(30522, 512, 768, 12, 12).eval()
    ours.load_state_dict(load_bert(state))
    theirs = BertForPreTraining.from_pretrained(folder).eval()
    text = "The man worked as a [MASK]."
    pieces = bert_base.wordpieces(vocabulary, text.replace("[MASK]", "x"))
    tokens, segments, lengths = pack(vocabulary, [(pieces, None)])
    with torch.no_grad():
        words, follows = ours(tokens, segments, lengths)
        expected = theirs(**asked(tokens, segments, lengths))
    torch.testing.assert_close(words, expected.prediction_logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(follows, expected.seq_relationship_logits, rtol=0, atol=1e-4)


# TF-IDF, masks and pairs


def test_tf_idf_is_the_one_of_scikit_learns_documentation():
    counts = torch.tensor([[3, 0, 1], [2, 0, 0], [3, 0, 0], [4, 0, 0], [3, 2, 0], [3, 0, 2]])
    expected = [
        [0.85151335, 0.0, 0.52433293],
        [1.0, 0.0, 0.0],
        [1.0, 0.0, 0.0],
        [1.0, 0.0, 0.0],
        [0.55422893, 0.83236428, 0.0],
        [0.63035731, 0.0, 0.77630514],
    ]
    torch.testing.assert_close(tf_idf(counts.double()), torch.tensor(expected).double())


def upper_tail(statistic: float, k: int) -> float:
    """The probability of a χ² with k degrees of freedom that is at least this large."""
    return torch.special.gammaincc(torch.tensor(k / 2.0), torch.tensor(statistic / 2)).item()


def test_masking_rates_are_exact():
    V, source = 30, torch.Generator().manual_seed(0)
    tokens = torch.randint(5, V, (1000, 1000), generator=source)
    inputs, targets = mask_tokens(tokens, [0, 1, 2, 3, 4], 4, V, source)
    chosen = targets != -100
    seen = [
        (~chosen).sum(),
        (chosen & (inputs == 4)).sum(),
        (chosen & (inputs == tokens)).sum(),
        (chosen & (inputs != 4) & (inputs != tokens)).sum(),
    ]
    shares = [0.85, 0.15 * (0.8 + 0.1 / V), 0.15 * (0.1 + 0.1 / V), 0.15 * 0.1 * (1 - 2 / V)]
    assert sum(shares) == pytest.approx(1)
    pairs = zip(seen, shares, strict=True)
    statistic = sum((int(s) - 1e6 * p) ** 2 / (1e6 * p) for s, p in pairs)
    assert upper_tail(statistic, 3) > 1e-3
    drawn = inputs[chosen & (inputs != 4) & (inputs != tokens)]
    counts = torch.bincount(drawn, minlength=V).double()
    expected = torch.tensor([1.0] * 5 + [1 - 1 / (V - 5)] * (V - 5)).double()
    expected[4] = counts[4] = 0
    expected *= counts.sum() / expected.sum()
    keep = expected > 0
    statistic = ((counts - expected)[keep] ** 2 / expected[keep]).sum().item()
    assert upper_tail(statistic, V - 2) > 1e-3


def test_chosen_words_are_independent():
    tokens = torch.full((4000, 50), 9)
    _, targets = mask_tokens(tokens, [0], 4, 30, torch.Generator().manual_seed(1))
    chosen = (targets != -100).double()
    correlations = torch.corrcoef(chosen.T) - torch.eye(50)
    assert correlations.abs().max() < 0.08  # five standard deviations of 1 / √4000
    per_text = torch.bincount(chosen.sum(dim=1).long(), minlength=51).double()
    k = torch.arange(51).double()
    ways = [math.comb(50, n) for n in range(51)]
    binomial = torch.tensor(ways).double() * 0.15**k * 0.85 ** (50 - k) * 4000
    common = binomial > 5
    statistic = ((per_text - binomial)[common] ** 2 / binomial[common]).sum().item()
    assert upper_tail(statistic, int(common.sum()) - 1) > 1e-3


def test_pairs_of_the_corpus_are_half_true():
    world = facts.world(3)
    documents = facts.documents(world, world.people, 400, 3)
    pairs, targets = next_sentence_pairs(documents, 6000, torch.Generator().manual_seed(0))
    true = {(" ".join(a), " ".join(b)) for a, b in documents}
    for (a, b), target in zip(pairs, targets, strict=True):
        if target == 0:
            assert (" ".join(a), " ".join(b)) in true
    assert abs(sum(targets) / 6000 - 0.5) < 5 * 0.5 / 6000**0.5


# The corpus of facts


@pytest.mark.parametrize("seed", range(5))
def test_the_corpus_obeys_its_grammar(seed):
    world = facts.world(seed)
    seen = set()
    for first, second in facts.documents(world, world.people, 500, seed):
        name, the, job, link, city = first
        assert the == "the" and link in facts.LINKS
        pronoun, verb, language, at, place = second
        assert verb in facts.VERBS and at == "at" and place == facts.PLACES[job]
        assert pronoun == world.pronouns[name] and language == world.languages[city]
        seen.add((link, verb))
    assert len(seen) == 6


def test_no_fact_is_told_by_a_word():
    words = [*facts.SHE, *facts.HE, *facts.LANGUAGES, *facts.PLACES, *facts.PLACES.values()]
    words += [*facts.LINKS, *facts.VERBS, "the", "at", "she", "he", *facts.world(0).languages]
    assert len(words) == len(set(words))
    languages = [facts.world(seed).languages for seed in range(200)]
    cities = set().union(*languages)
    assert len(cities) == 64
    for city in sorted(cities)[:8]:
        found = [world[city] for world in languages if city in world]
        assert len(set(found)) == 10  # in some world or other it speaks any of them


def test_languages_have_as_many_cities():
    languages = list(facts.world(1, cities=5).languages.values())
    assert all(languages.count(name) == 5 for name in facts.LANGUAGES) and len(languages) == 50


def test_splits_share_no_pair_and_no_sentence():
    world = facts.world(2)
    assert not set(world.people) & set(world.strangers)
    assert len(world.people) + len(world.strangers) == 16 * 40
    assert len(world.strangers) == 128
    told = facts.documents(world, world.people, 5000, 0)
    asked_for = facts.documents(world, world.strangers, 2000, 1)
    firsts = {" ".join(first) for first, _ in told}
    assert not firsts & {" ".join(first) for first, _ in asked_for}
    assert {c for _, c in world.strangers} <= {c for _, c in world.people}


def test_the_corpus_is_the_same_for_the_same_seed():
    assert facts.world(4) == facts.world(4) != facts.world(5)
    world = facts.world(4)
    a, b, c = (facts.documents(world, world.people, 50, seed) for seed in (1, 1, 2))
    assert a == b != c


@pytest.mark.parametrize("options", [{"cities": 0}, {"cities": 7}, {"strangers": -0.1}])
def test_worlds_are_checked(options):
    with pytest.raises(ValueError, match="cities must be 1 to 6 and strangers 0 to 1"):
        facts.world(0, **options)


# Sentences


def test_examples_in_docstrings():
    for module in (facts, sentences, bert_base):
        assert doctest.testmod(module).failed == 0


def test_a_vocabulary_knows_its_words():
    vocabulary = Vocabulary.of([[["b", "a"], ["b", "c"]]], size=2)
    assert vocabulary.words == [*sentences.SPECIAL, "b", "a"]
    assert vocabulary.encode(["a", "c", "[MASK]"]) == [6, vocabulary.unk, vocabulary.mask]
    published = Vocabulary(["x", "[PAD]", "[MASK]", "[SEP]", "[CLS]", "[UNK]"])
    assert len(published) == 6 and published.special == [1, 5, 4, 3, 2]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 9))),
        min_size=1,
        max_size=5,
    ),
    st.integers(3, 14),
)
def test_packed_texts_are_whole_or_cut_fairly(sizes, longest):
    vocabulary = Vocabulary([f"w{n}" for n in range(40)])
    pairs = [
        ([5 + n for n in range(a)], None if b is None else [25 + n for n in range(b)])
        for a, b in sizes
    ]
    if longest == 3:
        pairs = [(a, None) for a, _ in pairs]
    tokens, segments, lengths = pack(vocabulary, pairs, max(longest, 4))
    for (a, b), row, kinds, length in zip(pairs, tokens, segments, lengths.tolist(), strict=True):
        row, kinds = row.tolist(), kinds.tolist()
        assert set(row[length:]) <= {vocabulary.pad} and not any(kinds[length:])
        border = row.index(vocabulary.sep)
        first, second = row[1:border], row[border + 1 : length]
        assert row[0] == vocabulary.cls and row[length - 1] == vocabulary.sep
        assert first == a[: len(first)] and not any(kinds[: border + 1])
        whole = len(a) + (2 if b is None else len(b) + 3)
        assert length == min(whole, max(longest, 4))
        if b is not None:
            assert second[:-1] == b[: len(second) - 1] and all(kinds[border + 1 : length])
            if whole > longest and min(len(first), len(second) - 1) > 0:
                assert abs(len(first) - len(second) + 1) <= max(1, abs(len(a) - len(b)))


def test_nothing_to_pack_is_refused():
    with pytest.raises(ValueError, match="there are 0 texts"):
        pack(Vocabulary([]), [])


def test_a_text_file_becomes_a_corpus(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("A cat sat. It didn't move!\n\n \n\nÉmile came in 1905.\n", encoding="utf-8")
    assert sentences.read(path) == [
        [["a", "cat", "sat", "."], ["it", "didn", "'", "t", "move", "!"]],
        [["émile", "came", "in", "1905", "."]],
    ]
    path.write_bytes(b"abc. \xff")
    with pytest.raises(EncodingError, match=r"byte 0xff at offset 5$"):
        sentences.read(path)
    assert sentences.read(path, limit=4) == [[["abc", "."]]]


# GLUE


FILES = {
    "CoLA": ("gj04\t1\t\tOur friends won't buy this.\n", ("Our friends won't buy this.", None, 1)),
    "SST-2": ("sentence\tlabel\nhide new secretions \t0\n", ("hide new secretions ", None, 0)),
    "MRPC": (
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t70\t71\tHe said "no\t"No", he\n',
        ('He said "no', '"No", he', 1),
    ),
    "QQP": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tWhy?\tHow?\t0\n",
        ("Why?", "How?", 0),
    ),
    "MNLI": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
        "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
        + "\t".join("0 a b c ( ( ( (".split())
        + "\tIt is.\tIs it?\tneutral\tneutral\n",
        ("It is.", "Is it?", 1),
    ),
    "QNLI": (
        "index\tquestion\tsentence\tlabel\n0\tWhen?\tToday.\tnot_entailment\n",
        ("When?", "Today.", 1),
    ),
    "RTE": ("index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tentailment\n", ("A.", "B.", 0)),
    "WNLI": ("index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\t1\n", ("A.", "B.", 1)),
}


@pytest.mark.parametrize("task", FILES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_glue_files_are_read(tmp_path, task, end):
    path, (content, example) = tmp_path / "train.tsv", FILES[task]
    path.write_bytes(content.replace("\n", end).encode())
    assert glue.read(path, task) == [example]
    assert set(FILES) == set(glue.TASKS)


def test_rows_without_agreement_are_left_out(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text("sentence1\tsentence2\tgold_label\na\tb\t-\nc\td\tcontradiction\n")
    assert glue.read(path, "MNLI") == [("c", "d", 2)]


def test_no_more_examples_are_read_than_asked_for(tmp_path):
    path = tmp_path / "train.tsv"
    good = "sentence\tlabel\n" + "".join(f"text {n}\t{n % 2}\n" for n in range(50))
    path.write_bytes(good.encode() + b"\xff broken\n")
    assert glue.read(path, "SST-2", 50) == [(f"text {n}", None, n % 2) for n in range(50)]
    assert glue.read(path, "SST-2", 0) == []
    with pytest.raises(EncodingError, match=f"byte 0xff at offset {len(good)}$") as error:
        glue.read(path, "SST-2")
    assert error.value.offset == len(good)


@pytest.mark.parametrize(
    "content, message",
    [
        ("text\tlabel\na\t1\n", "has no column 'sentence'; its columns are"),
        ("", "has no column 'sentence'"),
        ("sentence\tlabel\n\na\t1\nb\t1\t2\n", "line 4: 3 cells, not 2"),
        ("sentence\tlabel\na\tyes\n", "line 2: the label 'yes' is none of"),
        ("sentence\tlabel\n" + "a" * (1 << 21), "line 2: longer than 1048576 bytes"),
    ],
)
def test_what_is_not_in_the_format_is_refused(tmp_path, content, message):
    path = tmp_path / "train.tsv"
    path.write_text(content)
    with pytest.raises(glue.FormatError, match=message):
        glue.read(path, "SST-2")


def test_tasks_and_limits_are_checked(tmp_path):
    with pytest.raises(ValueError, match="there is no task 'SST2'; there are CoLA, SST-2"):
        glue.read(tmp_path / "a", "SST2")
    with pytest.raises(ValueError, match="limit must not be negative, got -1"):
        glue.read(tmp_path / "a", "SST-2", -1)


# The published files


PIECES = ["the", "un", "##aff", "##able", "na", "##ive", "cafe", "!", ",", "東", "a", "##b", "x"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A cache of Hugging Face that holds a small model under BERT's name, in the old format."""
    folder = tmp_path / "hub" / "models--google-bert--bert-base-uncased" / "snapshots" / "1a2b"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    words = [*sentences.SPECIAL, *PIECES]
    words += [f"piece{n}" for n in range(SIZES["V"] - len(words))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    theirs = tiny(BertForPreTraining).float()
    state = {}
    for name, value in theirs.state_dict().items():
        if "decoder" not in name:
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            state[name.replace("LayerNorm.bias", "LayerNorm.beta")] = value.contiguous()
    save_file(state, folder / "model.safetensors")
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    return folder, theirs, tokenizer


def test_published_files_give_the_tokens_and_logits_of_transformers(files):
    folder, theirs, tokenizer = files
    assert bert_base.find() == folder
    state, vocabulary = bert_base.read(folder)
    ours = BertPretraining(**SIZES, L=3)
    ours.load_state_dict(load_bert(state))
    a, b = "Unaffable, the Café!", "naïve 東x aB"
    asked_for = tokenizer(a, b, return_tensors="pt")
    pieces = [bert_base.wordpieces(vocabulary, text) for text in (a, b)]
    tokens, segments, lengths = pack(vocabulary, [tuple(pieces)])
    assert torch.equal(tokens, asked_for["input_ids"])
    assert torch.equal(segments, asked_for["token_type_ids"])
    expected = theirs(**asked_for)
    words, follows = ours(tokens, segments, lengths)
    torch.testing.assert_close(words, expected.prediction_logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(follows, expected.seq_relationship_logits, rtol=0, atol=1e-4)


def test_word_pieces_are_those_of_transformers(files):
    folder, _, tokenizer = files
    _, vocabulary = bert_base.read(folder)
    source = random.Random(0)
    old = unicodedata.ucd_3_2_0.category  # what every version of Unicode agrees on
    known = [c for c in map(chr, range(0x3000)) if old(c) == unicodedata.category(c) != "Cn"]
    letters = "unaffable naïve the CAFÉ a abb ! , 東 x\t\n\u0301 -_$\u3000".split(" ") + [" "] * 9
    for _ in range(1500):
        text = "".join(source.choices(letters, k=12)) + source.choice(known)
        expected = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert bert_base.wordpieces(vocabulary, text) == expected, repr(text)
    assert bert_base.wordpieces(vocabulary, "a" * 101) == [vocabulary.unk]


def test_files_that_are_not_there_are_not_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    assert bert_base.find() is None
