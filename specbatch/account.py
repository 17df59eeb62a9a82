"""What is counted for a row: its drafted tokens, and its share of time and energy."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class DraftAccount:
    """What became of drafted tokens.

    ``drafted = unselected + selected``, ``selected = pruned + verified``,
    ``verified = accepted + rejected``, and of a row's output tokens: ``accepted + verifications + 1 -
    trimmed`` (the 1 is the token at the end of prefill).

    Attributes:
        drafted: Tokens the drafter produced.
        unselected: Those that no target pass was asked about.
        selected: Those that one was.
        pruned: Selected, and taken out before the target computed them.
        verified: Computed by the target.
        accepted: What the target would have written itself.
        rejected: The others.
        trimmed: Chosen tokens behind the end of the row's text, accepted ones and a last one.
        verifications: Target passes that chose a token behind every accepted one; the pass at the end
            of prefill is none.
        accept_histogram: How many verifications accepted 0, 1, 2, … tokens; one that met logits that
            are not numbers is counted here with what it had accepted.
        draft_passes: Passes of a draft model that the row took part in.
        draft_flops: Of all drafting.
        rejected_flops: Of the target, for rejected tokens.
    """

    drafted: int = 0
    unselected: int = 0
    selected: int = 0
    pruned: int = 0
    verified: int = 0
    accepted: int = 0
    rejected: int = 0
    trimmed: int = 0
    verifications: int = 0
    accept_histogram: list[int] = field(default_factory=list)
    draft_passes: int = 0
    draft_flops: float = 0.0
    rejected_flops: float = 0.0

    def count_verification(self, accepted: int) -> None:
        """Enter one verification into the histogram."""
        self.accept_histogram += [0] * (accepted + 1 - len(self.accept_histogram))
        self.accept_histogram[accepted] += 1

    def check(self) -> None:
        """Assert that the account adds up."""
        assert self.drafted == self.unselected + self.selected, "a drafted token is unaccounted for"
        assert self.selected == self.pruned + self.verified, "a selected token is unaccounted for"
        assert self.verified == self.accepted + self.rejected, "a verified token is unaccounted for"
        by_length = sum(length * times for length, times in enumerate(self.accept_histogram))
        assert by_length == self.accepted, "the histogram disagrees with the accepted tokens"
        assert min(self.unselected, self.rejected, self.trimmed, self.rejected_flops) >= 0, "a negative count"


@dataclass(slots=True)
class DeviceShare:
    """What of the engine's time, and of the energy measured meanwhile, is attributed to a row.

    A step's seconds are shared by the tokens that it computes for each row, those of its drafting by the
    tokens drafted for each. So are its joules, which are taken to flow evenly while it lasts.

    Attributes:
        device_s: Seconds of the steps that the row took part in.
        draft_s: The part of them for drafting.
        rejected_s: The part of them for target passes over tokens that were rejected.
        joules: ``None`` where a part of them was not measured.
    """

    device_s: float = 0.0
    draft_s: float = 0.0
    rejected_s: float = 0.0
    joules: float | None = 0.0

    def add(self, seconds: float, joules: float | None, draft_s: float, rejected_s: float = 0.0) -> None:
        """Enter the share of a step; ``joules`` is ``None`` where they are not measured."""
        self.device_s += seconds
        self.draft_s += draft_s
        self.rejected_s += rejected_s
        self.joules = None if joules is None or self.joules is None else self.joules + joules
