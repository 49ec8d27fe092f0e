"""Programs of calls: what differs is found, shortened, and told; right objects pass."""

import pytest

from course_pkg.checking.guard import Guarded
from course_pkg.checking.programs.programs import Nonsense, draw_calls, follow, played
from course_pkg.checking.telling.failure import Failure, NotImplementedYet


class Shelf:
    """A stack of numbers in a place of its own: what a student writes."""

    def __init__(self, room):
        self.room, self.books = room, []

    def put(self, books):
        if len(self.books) + len(books) > self.room:
            raise ValueError("no room")
        self.books = self.books + books

    def take(self):
        return self.books.pop()


class Oracle(Shelf):
    def take(self):
        if not self.books:
            raise Nonsense
        return super().take()


class Driver:
    """A shelf for {0}"""

    def __init__(self, shelves, *settings):
        self.shelf = shelves(*settings)

    def put(self, books):
        """put {0}"""
        return self.shelf.put(books)

    def take(self):
        """take"""
        return self.shelf.take()

    def look(self):
        return {"the books": list(self.shelf.books), "their number": len(self.shelf.books)}


def play(shelves, programs):
    return [played(Driver(shelves, *settings), calls) for settings, calls in programs]


PROGRAMS = [
    ((3,), [("put", [1]), ("take",), ("put", [2])]),
    ((4,), [("put", [5]), ("put", [6]), ("take",), ("put", [7, 8, 9]), ("put", [3]), ("take",)]),
]


def told(shelf, programs=PROGRAMS):
    with pytest.raises(Failure) as caught:
        follow(Guarded(shelf, "Shelf"), Oracle, play, Driver, programs)
    return caught.value.message


def test_only_calls_that_make_sense_are_drawn():
    drawing = iter([("take",), ("put", [1]), ("put", [2, 3]), ("take",), ("take",), ("put", [4])])
    calls = [("put", [1]), ("put", [2, 3]), ("take",), ("put", [4])]  # the second one raises
    assert draw_calls(lambda: next(drawing), Driver(Oracle, 2), 4) == calls


def test_right_ones_pass():
    follow(Guarded(Shelf, "Shelf"), Oracle, play, Driver, PROGRAMS)


def test_the_shortest_program_is_told():
    class First(Shelf):
        def take(self):
            return self.books.pop(0)

    text = "A shelf for 4: put [5]; put [6]; take.\nIt should give 6, yours gives 5."
    assert told(First) == text

    class Forgets(Shelf):
        def take(self):
            return self.books[-1]

    text = (
        "A shelf for 3: put [1]; take.\n"
        "Then the books should be nothing, yours is [1]; their number should be 0, yours is 1."
    )
    assert told(Forgets) == text


def test_half_of_a_long_program_goes_at_once():
    class Three(Shelf):
        def put(self, books):
            super().put(books)
            self.books = self.books[:2]

    played_programs = []

    def counted(shelves, programs):
        played_programs.extend(programs)
        return play(shelves, programs)

    idle = [("put", [1]), ("take",)] * 16
    calls = [*idle, ("put", [1, 2, 3]), *idle]
    with pytest.raises(Failure, match=r"A shelf for 9: put \[1, 2, 3\]\.\n"):
        follow(Guarded(Three, "Shelf"), Oracle, counted, Driver, [((9,), calls)])
    assert len(played_programs) < 40  # one call after the other, each twice, would be 66


def test_errors_are_told():
    class Endless(Shelf):
        def put(self, books):
            self.books = self.books + books

    class Odd(Shelf):
        def put(self, books):
            self.books = self.books + {1: books}[len(books)]

    class OtherKind(Shelf):
        def put(self, books):
            if len(self.books) + len(books) > self.room:
                raise KeyError("full")
            super().put(books)

    full = "A shelf for 4: put [5]; put [7, 8, 9]; put [3].\nIt should raise ValueError"
    assert told(Endless, PROGRAMS[1:]).startswith(f"{full}, yours gives nothing.")
    assert told(Odd, PROGRAMS[1:]).startswith("A shelf for 4: put [7, 8, 9].\nShelf.put raised Key")
    assert told(OtherKind, PROGRAMS[1:]).startswith(f"{full}. Shelf.put raised KeyError: 'full'")


def test_a_list_of_the_callers_that_grows():
    class Keeps(Shelf):
        def put(self, books):
            if self.books:
                self.books += books
            else:
                self.books = books

    text = "A shelf for 4: put [5]; put [6].\nA list that the caller keeps has changed: "
    assert told(Keeps, PROGRAMS[1:]) == f"{text}[5] of put is now [5, 6]."


def test_what_cannot_be_looked_at_ends_a_program():
    class Lost(Shelf):
        def take(self):
            del self.books
            return 1

    assert told(Lost) == "Shelf has no attribute or method 'books'."

    class Stub(Shelf):
        def take(self):
            raise NotImplementedError

    with pytest.raises(NotImplementedYet):
        follow(Guarded(Stub, "Shelf"), Oracle, play, Driver, PROGRAMS)


def test_steps_that_are_missing_are_no_success():
    def nothing(shelves, programs):
        return play(shelves, programs) if shelves is Oracle else [[] for _ in programs]

    with pytest.raises(TypeError):  # which the runner tells as a result that cannot be checked
        follow(Shelf, Oracle, nothing, Driver, PROGRAMS)


def test_the_same_mistake_leaves_the_same_mark():
    class Forgets(Shelf):
        def take(self):
            return self.books[-1]

    class Copies(Shelf):
        def take(self):
            *_, last = [*self.books]
            return last

    class Loses(Shelf):
        def take(self):
            last, self.books = self.books[-1], []
            return last

    marks = []
    for shelf in (Forgets, Copies, Loses):
        with pytest.raises(Failure) as caught:
            follow(Guarded(shelf, "Shelf"), Oracle, play, Driver, PROGRAMS)
        marks.append(caught.value.observed.tolist())
    assert marks[0] == marks[1] != marks[2]
