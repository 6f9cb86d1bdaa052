# SPDX-License-Identifier: Apache-2.0
"""Which rule makes a second name of a first one: of an image its mask, or of a frame the next one."""

import os
import re
from difflib import SequenceMatcher

SHIFTS_MIN = 3  # names that tell by how much a number is shifted
_DIGITS = re.compile(r"(\d+)")


def named_after(pairs):
    """The rule that makes a second text of the first, as (image, mask) or (name, path); or None.

    The rule is a function of a text.  It returns None for a text that it does not fit."""
    if all(given == made for given, made in pairs):
        return lambda path: path
    return _around_a_part(pairs) or _by_components(pairs)


def _around_a_part(pairs):
    """Both have a part in common, and the texts before and behind that part are the same in all pairs.  A directory
    that both begin with may differ from pair to pair."""
    above = os.path.commonprefix([text for pair in pairs for text in pair])
    above = above[:above.rfind("/") + 1]
    given, made = (text[len(above):] for text in pairs[0])
    blocks = SequenceMatcher(None, given, made, False).get_matching_blocks()
    for a, b, size in sorted(blocks, key=lambda block: -block[2]):
        cut, behind = given[:a], given[a + size:]
        put, then = made[:b], made[b + size:]
        cut, put = (above + cut, above + put) if cut or put else ("", "")

        def rule(path, cut=cut, behind=behind, put=put, then=then):
            if not (path.startswith(cut) and path.endswith(behind) and len(path) >= len(cut) + len(behind)):
                return None
            return put + path[len(cut):len(path) - len(behind)] + then

        if size and all(rule(first) == second for first, second in pairs):
            return rule
    return None


def _by_components(pairs):
    """Each directory, and the file's name, is made of the one at the same place from the end or from the begin, or is
    always the same: DATE/image_02/0007.png and DATE/points/0007.bin, or image_02/0008.png."""
    given, made = ([text.split("/") for text in texts] for texts in zip(*pairs))
    if len(set(map(len, given))) != 1 or len(set(map(len, made))) != 1 or len(set(map(tuple, made))) == 1:
        return None
    size, steps = len(given[0]), []
    for k in range(len(made[0])):
        places = [at for at in (size - len(made[0]) + k, k) if 0 <= at < size]
        step = next(filter(None, (_component([(first[at], second[k]) for first, second in zip(given, made)], at)
                                  for at in places)), None)
        if step is None:
            if len({second[k] for second in made}) != 1:
                return None
            step = 0, lambda _, text=made[0][k]: text
        steps.append(step)

    def rule(path):
        parts = path.split("/")
        texts = [make(parts[at]) for at, make in steps] if len(parts) == size else [None]
        return None if None in texts else "/".join(texts)

    return rule if all(rule(first) == second for first, second in pairs) else None


def _component(pairs, at):
    """(at, the rule from a component to one), or None."""
    if all(given == made for given, made in pairs):
        return at, lambda text: text
    if len({made for _, made in pairs}) == 1:
        return None
    rule = _by_numbers(pairs) or _around_a_part(pairs)
    return rule and (at, rule)


def _by_numbers(pairs):
    """The numbers in both are the same, or all shifted alike, and the texts between them are always the same ones."""
    given, made = ([_DIGITS.split(text) for text in texts] for texts in zip(*pairs))
    if len(set(map(len, given + made))) != 1:
        return None
    steps = [(_number if k % 2 else _between)([(first[k], second[k]) for first, second in zip(given, made)])
             for k in range(len(given[0]))]
    if None in steps:
        return None

    def rule(text):
        parts = _DIGITS.split(text)
        texts = [make(part) for make, part in zip(steps, parts)] if len(parts) == len(steps) else [None]
        return None if None in texts else "".join(texts)

    return rule


def _between(pairs):
    if all(given == made for given, made in pairs):
        return lambda text: text
    return (lambda _, text=pairs[0][1]: text) if len({made for _, made in pairs}) == 1 else None


def _number(pairs):
    by = int(pairs[0][1]) - int(pairs[0][0])
    if by and len({given for given, _ in pairs}) < SHIFTS_MIN:
        return _between(pairs)
    for width in len, lambda _: 0, lambda _, width=len(pairs[0][1]): width:  # as the first one; none; always the same
        def shifted(text, width=width):
            number = int(text) + by
            return str(number).zfill(width(text)) if number >= 0 else None

        if all(shifted(given) == made for given, made in pairs):
            return shifted
    return _between(pairs)
