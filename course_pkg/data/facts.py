"""A corpus of facts about invented people, small enough to be learned in seconds and examined.

Every city has one language, every job one place of work, and every name one pronoun. The grammar:

    document = first second
    first    = NAME "the" JOB ("from" | "in" | "of") CITY
    second   = PRONOUN ("speaks" | "reads") LANGUAGE "at" PLACE

NAME, JOB and CITY are drawn independently. The second sentence follows from the first, except for
its verb. Which city has which language is drawn anew for every world: no word reveals it.
"""

import random
from dataclasses import dataclass
from itertools import product

SHE = "ada bea cleo dora emma fay gina hana".split()
HE = "abe ben carl dan egon finn gus hugo".split()
PLACES = {
    "baker": "bakery",
    "farmer": "farm",
    "judge": "court",
    "nurse": "hospital",
    "teacher": "school",
    "clerk": "bank",
}
LANGUAGES = "akish berric cundan dorvic elmian fastic gorean huldic imbric jostan".split()
LINKS, VERBS = "from in of".split(), "speaks reads".split()
_SYLLABLES = "ba ko ri su ve lo ma ni".split(), "dor lin mar nes pol tis vek zan".split()

Sentence = list[str]


@dataclass(frozen=True)
class World:
    """What is true: the facts that the corpus tells.

    Attributes:
        languages: the language of each city; all languages have equally many cities.
        people: pairs of a name and a city that the corpus speaks of.
        strangers: the other pairs, which no sentence of the corpus mentions.
        pronouns: the pronoun of each name.
        places: where each job works.
    """

    languages: dict[str, str]
    people: list[tuple[str, str]]
    strangers: list[tuple[str, str]]
    pronouns: dict[str, str]
    places: dict[str, str]


def world(seed: int, cities: int = 4, strangers: float = 0.2) -> World:
    """Draw a world.

    Example:
        >>> w = world(seed=0)
        >>> len(w.languages), len(w.people), len(w.strangers)
        (40, 512, 128)

    Args:
        seed: decides which city has which language, and which pairs are strangers.
        cities: how many cities each of the ten languages has, from 1 to 6.
        strangers: what share of the pairs of a name and a city to hold back, from 0 to 1.
    Returns:
        The world.
    Raises:
        ValueError: cities or strangers is out of range.
    """
    if not 1 <= cities <= 6 or not 0 <= strangers <= 1:
        raise ValueError(f"cities must be 1 to 6 and strangers 0 to 1, got {cities}, {strangers}")
    source = random.Random(seed)
    names = ["".join(parts) for parts in product(*_SYLLABLES)]
    source.shuffle(names)
    languages = {name: LANGUAGES[n // cities] for n, name in enumerate(names[: 10 * cities])}
    pronouns = dict.fromkeys(SHE, "she") | dict.fromkeys(HE, "he")
    pairs = list(product(pronouns, sorted(languages)))
    source.shuffle(pairs)
    held = round(strangers * len(pairs))
    return World(languages, pairs[held:], pairs[:held], pronouns, dict(PLACES))


def first(name: str, job: str, city: str, link: int = 0) -> Sentence:
    """Write the first sentence of a document; `link` picks one of the three words in LINKS."""
    return [name, "the", job, LINKS[link], city]


def second(world: World, name: str, job: str, city: str, verb: int = 0) -> Sentence:
    """Write the second sentence of a document; `verb` picks one of the two words in VERBS."""
    return [world.pronouns[name], VERBS[verb], world.languages[city], "at", world.places[job]]


def documents(
    world: World, pairs: list[tuple[str, str]], count: int, seed: int
) -> list[list[Sentence]]:
    """Write documents about people, whose names and cities are drawn from some pairs.

    Args:
        world: what is true.
        pairs: `world.people`, `world.strangers` or some of them.
        count: how many documents.
        seed: the source of randomness.
    Returns:
        The documents, each of two sentences.
    """
    source, jobs, written = random.Random(seed), sorted(world.places), []
    for _ in range(count):
        (name, city), job = source.choice(pairs), source.choice(jobs)
        opening = first(name, job, city, source.randrange(3))
        written.append([opening, second(world, name, job, city, source.randrange(2))])
    return written
