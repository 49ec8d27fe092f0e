"""What a notebook shows folded, without code of ours: hints, classic mistakes, what to expect."""

import re

# Each ends with its paragraph, or with the list that follows it directly.
_END = r"(?=\n\n(?!- )|\Z)"
_WARNING = re.compile(rf"\s*(\*\*The classic mistake(s?)\b.*?){_END}", re.DOTALL)
_EXPECTATION = re.compile(rf"\s*\*\*What to expect\.\*\*\s+(.*?){_END}", re.DOTALL)


def with_folded_warnings(text: str) -> str:
    """Fold each warning of a classic mistake; what stands before it in its paragraph stays."""

    def fold(match: re.Match) -> str:
        them = "them" if match[2] else "it"
        summary = f"The classic mistake{match[2]}: open {them} after a first attempt"
        return f"\n\n{folded(summary, match[1])}"

    return _WARNING.sub(fold, text).strip()


def with_folded_expectations(text: str) -> str:
    """Fold what an experiment is expected to show, so that students can predict it first."""

    def fold(match: re.Match) -> str:
        return f"\n\n{folded('What to expect', match[1])}"

    return _EXPECTATION.sub(fold, text).strip()


def hints(name: str, texts: tuple[str, ...]) -> str:
    """Write the hints of an exercise, each folded under the name that checks give it."""
    return "\n\n".join(
        folded(f"Hint {number} of {name}", text) for number, text in enumerate(texts, 1)
    )


def folded(summary: str, text: str) -> str:
    # Between blank lines, Markdown and formulas are read as everywhere else.
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"
