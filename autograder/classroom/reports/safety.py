"""Make HTML that students have written harmless: it shows what it showed, and runs nothing.

What it may consist of is listed here; all else is shown as text. Nor can it pass for a part of the
page: it stays in its place, and has no name by which the page's own scripts would find it.
"""

import re
from collections.abc import Iterator

from bleach.css_sanitizer import CSSSanitizer
from bleach.html5lib_shim import Filter
from bleach.sanitizer import Cleaner
from markupsafe import escape

_TEXT = """a abbr b blockquote br caption code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i
img ins kbd li mark ol p pre q s samp small span strike strong sub summary sup table tbody td tfoot
th thead tr tt u ul var""".split()
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_FORMULAS = """math menclose mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot
mrow mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover""".split()
_STYLES = """background-color border-color border-style border-width color font-size font-style
font-weight text-align text-decoration vertical-align white-space""".split()

# A piece of HTML has no more tags and, without its pictures, letters: the time to read it can grow
# with the square of either.
TAGS, LETTERS = 5_000, 100_000
ANCHOR = "heading-"  # before the names of headings: no cell's name begins so

# Values are compared as they were written, with entities, which nothing here permits.
_WORDS = re.compile(r"[\w\s.,%#+()-]*")
_STYLE = re.compile(r"[\w\s.,%#+():;-]*")
_CLASS = re.compile(r"highlight|anchor-link|dataframe|err|[a-z]{1,2}\d?")  # mostly of pygments
_LINK = re.compile(r"(https?://|mailto:|#)", re.IGNORECASE)
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp|svg\+xml);base64,[A-Za-z0-9+/=\s]*")
_TABLES_STYLE = re.compile(r"<style scoped>[^<]*</style>")
_MATHS = set(
    """accent accentunder align columnalign columnlines columnspacing depth display displaystyle
    fence form frame height largeop linethickness lspace mathbackground mathcolor mathsize
    mathvariant maxsize minsize movablelimits notation rowalign rowlines rowspacing rspace
    scriptlevel separator stretchy symmetric voffset width""".split()
)
_NUMBERS = {"border", "colspan", "height", "rowspan", "start", "width"}


def clean_html(text: str | bytes) -> str:
    """Make HTML harmless, in place of nbconvert's filter of this name."""
    text = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    if text.count("<") > TAGS or len(_PICTURE.sub("", text)) > LETTERS:
        return f"<pre>{escape(text)}</pre>"
    cleaner = Cleaner(
        tags={*_TEXT, *_FORMULAS},
        attributes=_permits,
        protocols={"http", "https", "mailto", "data"},
        css_sanitizer=CSSSanitizer(_STYLES, ()),
        filters=[_Links],
    )
    return cleaner.clean(_TABLES_STYLE.sub("", text))  # pandas writes one above each table


def _permits(tag: str, name: str, value: str) -> bool:
    """Say whether an element may have an attribute."""
    if (tag, name) == ("a", "href"):
        return bool(_LINK.match(value))
    if (tag, name) == ("img", "src"):
        return bool(_PICTURE.fullmatch(value))
    if name in ("alt", "title"):
        return True
    if name == "id":
        return tag in _HEADINGS
    if name == "class":
        return all(map(_CLASS.fullmatch, value.split()))
    if name == "style":
        return bool(_STYLE.fullmatch(value))
    if name == "open":
        return tag == "details"
    known = _MATHS if tag in _FORMULAS else _NUMBERS
    return name in known and bool(_WORDS.fullmatch(value))


class _Links(Filter):
    """Lead links within the page to its headings, and others to a tab that learns nothing of it."""

    def __iter__(self) -> Iterator[dict]:
        for token in super().__iter__():
            if token["type"] == "StartTag":
                values = token["data"]
                if name := values.get((None, "id")):
                    values[None, "id"] = ANCHOR + name
                href = values.get((None, "href"), "")
                if href.startswith("#"):
                    values[None, "href"] = f"#{ANCHOR}{href[1:]}"
                elif href:
                    values[None, "target"] = "_blank"
                    values[None, "rel"] = "noopener noreferrer"
            yield token
