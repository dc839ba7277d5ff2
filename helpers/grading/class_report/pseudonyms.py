"""Names for students in a report: their own, or pseudonyms that stay the same from report to report."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from helpers.grading.course import GradingError
from helpers.grading.results import Person

_KEY_BYTES = 32
# A word as short as this is replaced only where it stands alone: "an" is a name, and a part of many words.
_SHORT = 3


class OwnNames:
    """Everybody under the id that the gradebook has, and texts as they are."""

    anonymous = False

    def __init__(self, people: Iterable[Person]) -> None:
        self._names = {person.id: person.name for person in people}

    def label(self, student: str) -> str:
        return student

    def full_name(self, student: str) -> str:
        return self._names.get(student, "")

    def text(self, text: str) -> str:
        return text


class Pseudonyms:
    """Everybody under a pseudonym, and texts without anything from the gradebook that says who somebody is.

    Pseudonyms are made with a secret key: without it nobody can tell from a list of ids which is whose.
    """

    anonymous = True

    def __init__(self, people: Iterable[Person], key: bytes) -> None:
        self._key = key
        self._words = {_folded(word): self.label(person.id) for person in people for word in (*person.words, person.id)}

    def label(self, student: str) -> str:
        digest = hmac.new(self._key, student.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()
        letters = base64.b32encode(digest[:5]).decode().lower()
        return f"{letters[:4]}-{letters[4:]}"

    def full_name(self, student: str) -> str:
        return ""

    def text(self, text: str) -> str:
        """The text with every id, name and address replaced, whoever it belongs to: rather too much than too little."""
        text = unicodedata.normalize("NFC", text)
        folded = text.casefold()
        found = sorted((word for word in self._words if word in folded), key=len, reverse=True)
        if not found:
            return text
        pattern = "|".join(_alone(word) if len(word) <= _SHORT else re.escape(word) for word in found)
        return re.sub(pattern, lambda match: self._words.get(_folded(match[0]), "[name]"), text, flags=re.IGNORECASE)


def _folded(word: str) -> str:
    return unicodedata.normalize("NFC", word).casefold()


def _alone(word: str) -> str:
    return rf"(?<![^\W_]){re.escape(word)}(?![^\W_])"


def read_key(path: Path) -> bytes:
    """The key of a course's pseudonyms, made when it is first needed. It stays with the instructor."""
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = secrets.token_bytes(_KEY_BYTES)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
    if len(key) != _KEY_BYTES:
        raise GradingError(
            f"{path} is damaged. Remove it: pseudonyms are then made anew, and differ from earlier ones."
        )
    return key
