"""A small grammar of English and Spanish, which knows which word translates which.

It has people, determiners, adjectives, nouns, verbs, prepositions and conjunctions. Spanish makes
determiners and adjectives agree with their noun in gender and number, and puts adjectives after
it, the last one first: "the small red houses" → "las casas rojas pequeñas".
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

SHORTEST, LONGEST = 4, 30  # words of an English sentence

_NAMES = [
    ("Mary", "María"),
    ("John", "Juan"),
    ("Peter", "Pedro"),
    ("Anne", "Ana"),
    ("Charles", "Carlos"),
    ("Lucy", "Lucía"),
    ("Helen", "Elena"),
    ("Michael", "Miguel"),
]

# English singular and plural, Spanish singular and plural.
_MALES = ["boy boys niño niños", "man men hombre hombres", "king kings rey reyes"]
_MALES += ["dog dogs perro perros", "bird birds pájaro pájaros"]
_FEMALES = ["girl girls niña niñas", "woman women mujer mujeres", "queen queens reina reinas"]
_FEMALES += ["cow cows vaca vacas", "turtle turtles tortuga tortugas"]
_MASCULINE = ["book books libro libros", "car cars coche coches", "hat hats sombrero sombreros"]
_MASCULINE += ["tree trees árbol árboles", "boat boats barco barcos", "shoe shoes zapato zapatos"]
_MASCULINE += ["clock clocks reloj relojes", "garden gardens jardín jardines"]
_FEMININE = ["house houses casa casas", "table tables mesa mesas", "flower flowers flor flores"]
_FEMININE += ["apple apples manzana manzanas", "door doors puerta puertas", "key keys llave llaves"]
_FEMININE += ["window windows ventana ventanas", "box boxes caja cajas"]

# English, then Spanish: masculine, feminine, masculine plural, feminine plural.
_ADJECTIVES = [
    ("red", "rojo", "roja", "rojos", "rojas"),
    ("white", "blanco", "blanca", "blancos", "blancas"),
    ("black", "negro", "negra", "negros", "negras"),
    ("green", "verde", "verde", "verdes", "verdes"),
    ("blue", "azul", "azul", "azules", "azules"),
    ("big", "grande", "grande", "grandes", "grandes"),
    ("small", "pequeño", "pequeña", "pequeños", "pequeñas"),
    ("old", "viejo", "vieja", "viejos", "viejas"),
    ("new", "nuevo", "nueva", "nuevos", "nuevas"),
    ("pretty", "bonito", "bonita", "bonitos", "bonitas"),
]
_SINGULAR = [
    ("the", "el", "la"),
    ("a", "un", "una"),
    ("this", "este", "esta"),
    ("my", "mi", "mi"),
    ("every", "cada", "cada"),
]
_PLURAL = [
    ("the", "los", "las"),
    ("some", "unos", "unas"),
    ("these", "estos", "estas"),
    ("my", "mis", "mis"),
    ("two", "dos", "dos"),
    ("many", "muchos", "muchas"),
]

# English plural and singular, Spanish singular, plural and future.
_VERBS = [
    ("see", "sees", "ve", "ven", "verá"),
    ("buy", "buys", "compra", "compran", "comprará"),
    ("paint", "paints", "pinta", "pintan", "pintará"),
    ("find", "finds", "encuentra", "encuentran", "encontrará"),
    ("sell", "sells", "vende", "venden", "venderá"),
    ("want", "wants", "quiere", "quieren", "querrá"),
    ("wash", "washes", "lava", "lavan", "lavará"),
    ("break", "breaks", "rompe", "rompen", "romperá"),
    ("need", "needs", "necesita", "necesitan", "necesitará"),
    ("hide", "hides", "esconde", "esconden", "esconderá"),
]
_ADVERBS = [("always", "siempre"), ("never", "nunca"), ("also", "también")]
_PREPOSITIONS = [
    ("with", "con"),
    ("without", "sin"),
    ("in", "en"),
    ("on", "sobre"),
    ("under", "bajo"),
    ("for", "para"),
]
_CONJUNCTIONS = [
    ("and", "y"),
    ("but", "pero"),
    ("because", "porque"),
    ("while", "mientras"),
]

DETERMINERS = frozenset(word for forms in _SINGULAR + _PLURAL for word in forms[1:])


def _nouns(masculine: list[str], feminine: list[str]) -> list[tuple[str, str, str, str, int]]:
    both = enumerate([masculine, feminine])
    return [(*noun.split(), gender) for gender, nouns in both for noun in nouns]


_ACTORS, _OBJECTS = _nouns(_MALES, _FEMALES), _nouns(_MASCULINE, _FEMININE)


@dataclass
class _Words:
    """A sentence as it grows: both languages, and the English place of each Spanish word."""

    english: list[str] = field(default_factory=list)
    spanish: list[str] = field(default_factory=list)
    alignment: list[int] = field(default_factory=list)

    def add(self, english: str, spanish: str) -> None:
        """Append a word and its translation."""
        self.say(spanish, len(self.english))
        self.english.append(english)

    def say(self, spanish: str, place: int) -> None:
        """Append a Spanish word that translates the English word at a place."""
        self.spanish.append(spanish)
        self.alignment.append(place)


class _NounPhrase:
    """A name, or a determiner and its noun; adjectives and a prepositional part may come later."""

    def __init__(self, rng: random.Random, nouns: list, *, may_be_name: bool):
        self.name = rng.choice(_NAMES) if may_be_name and rng.random() < 0.5 else None
        self.noun = rng.choice(nouns)
        self.plural = self.name is None and rng.random() < 0.5
        self.determiner = rng.choice(_PLURAL if self.plural else _SINGULAR)
        self.adjectives: list[tuple] = []
        self.preposition: tuple[str, str] | None = None
        self.other: _NounPhrase | None = None

    def __len__(self) -> int:
        own = 1 if self.name else 2 + len(self.adjectives)
        return own + (1 + len(self.other) if self.other else 0)

    def describe(self, rng: random.Random) -> None:
        """Add an adjective that is not there yet."""
        self.adjectives.append(rng.choice([a for a in _ADJECTIVES if a not in self.adjectives]))

    def write(self, words: _Words) -> None:
        if self.name:
            words.add(*self.name)
        else:
            self._write_noun(words)
        if self.other:
            words.add(*self.preposition)
            self.other.write(words)

    def _write_noun(self, words: _Words) -> None:
        *forms, gender = self.noun
        start, count = len(words.english), len(self.adjectives)
        english = [adjective[0] for adjective in self.adjectives] + [forms[self.plural]]
        determiner = self.determiner[0]
        if determiner == "a" and english[0][0] in "aeiou":
            determiner = "an"
        words.english += [determiner, *english]
        words.say(self.determiner[1 + gender], start)
        words.say(forms[2 + self.plural], start + 1 + count)
        for number in reversed(range(count)):
            form = self.adjectives[number][1 + gender + 2 * self.plural]
            words.say(form, start + 1 + number)


class _Clause:
    """Someone does something to a thing."""

    def __init__(self, rng: random.Random):
        self.subject = _NounPhrase(rng, _ACTORS, may_be_name=True)
        self.object = _NounPhrase(rng, _OBJECTS, may_be_name=False)
        self.verb = rng.choice(_VERBS)
        self.adverb: tuple[str, str] | None = None
        self.future = False
        self.conjunction: tuple[str, str] | None = None

    def __len__(self) -> int:
        extra = (self.conjunction is not None) + (self.adverb is not None) + self.future
        return len(self.subject) + 1 + len(self.object) + extra

    def write(self, words: _Words) -> None:
        if self.conjunction:
            words.add(*self.conjunction)
        self.subject.write(words)
        plural = self.subject.plural
        if self.future:  # two words in English, one in Spanish, and only that one shows the number
            words.english.append("will")
        if self.adverb:
            words.add(*self.adverb)
        if self.future:
            words.add(self.verb[0], self.verb[4] + "n" * plural)
        else:
            words.add(self.verb[not plural], self.verb[2 + plural])
        self.object.write(words)


def sentence(rng: random.Random, length: int) -> tuple[list[str], list[str], list[int]]:
    """Make a random sentence with a given number of English words.

    Args:
        rng: the source of randomness.
        length: English words, from SHORTEST to LONGEST.
    Returns:
        The English words, the Spanish words, and for each Spanish word the place of the English
        word that it translates.
    """
    while True:
        clauses = [_Clause(rng)]
        while (left := length - sum(map(len, clauses))) > 0:
            growths = _growths(rng, clauses, left)
            if not growths:
                break
            rng.choice(growths)()
        if left == 0:
            words = _Words()
            for clause in clauses:
                clause.write(words)
            return words.english, words.spanish, words.alignment


def _growths(rng: random.Random, clauses: list[_Clause], left: int) -> list[Callable[[], None]]:
    """The ways to make a sentence longer, by at most `left` words."""
    found = []
    for clause in clauses:
        for phrase in (clause.subject, clause.object, clause.subject.other, clause.object.other):
            if phrase and not phrase.name and len(phrase.adjectives) < 2:
                found.append(lambda phrase=phrase: phrase.describe(rng))
        if not clause.adverb:
            found.append(lambda c=clause: setattr(c, "adverb", rng.choice(_ADVERBS)))
        if not clause.future:
            found.append(lambda c=clause: setattr(c, "future", True))
        for phrase in (clause.subject, clause.object):
            if left >= 3 and not (phrase.other or phrase.name):
                found.append(lambda phrase=phrase: _attach(rng, phrase))
    if left >= 6:
        found += [lambda: clauses.append(_another(rng))] * 4
    return found


def _attach(rng: random.Random, phrase: _NounPhrase) -> None:
    phrase.preposition = rng.choice(_PREPOSITIONS)
    phrase.other = _NounPhrase(rng, _OBJECTS, may_be_name=True)


def _another(rng: random.Random) -> _Clause:
    clause = _Clause(rng)
    clause.conjunction = rng.choice(_CONJUNCTIONS)
    return clause
