"""What each column of input and output means, in one line: for ``specbatch schema`` and the README."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

INPUT_MEANING: Mapping[str, str] = MappingProxyType(
    {
        "prompt": "sent as one user message; each row fills this or messages",
        "messages": "a conversation; each row fills this or prompt",
        "id": "your name for the row, copied to the output",
        "deadline": "finish by this time; the earlier of two deadlines counts",
        "deadline_s": "finish by: seconds after the first start of the run",
        "tier": "latency class; sets priority and promises",
        "tpot_slo_ms": "milliseconds per output token after the first",
        "ttft_slo_ms": "milliseconds to the first output token",
        "max_tokens": "output tokens at most",
        "temperature": "0 always takes the likeliest token",
        "top_p": "keep the likeliest tokens of this probability mass",
        "top_k": "keep the k likeliest tokens; 0 keeps all",
        "min_p": "drop tokens below this share of the likeliest",
        "repetition_penalty": "above 1 discourages repetition",
        "seed": "equal prompt and seed: equal text",
        "stop": "strings that end the text",
        "arrival_s": "the row does not exist before this many seconds",
        "owner": "who the row belongs to; [owners] in the job file limits tiers and tokens",
        "max_draft_tokens": "drafted tokens per step at most; 0 decodes plainly; never changes the text",
    }
)

OUTPUT_MEANING: Mapping[str, str] = MappingProxyType(
    {
        "row_index": "position in the input, from 0",
        "id": "copied from the input",
        "tier": "the row's latency class; null where the job has no such tier",
        "status": "ok, truncated, rejected, error, expired or cancelled",
        "error_code": "what went wrong, for programs; null when nothing did",
        "error_message": "what went wrong, in which column, and what to do",
        "finish_reason": "stop (end of sequence or a stop string) or length",
        "text": "the answer",
        "token_ids": "the answer as tokens, only with --token-ids",
        "prompt_tokens": "tokens of the prompt, chat template included",
        "output_tokens": "tokens of the answer, the end-of-sequence token included",
        "cached_prompt_tokens": "prompt tokens taken over from an earlier row with the same beginning",
        "arrival": "when the row came into being",
        "queued_s": "seconds from arrival to admission",
        "ttft_s": "seconds from arrival to the first output token",
        "tpot_ms": "mean milliseconds per output token after the first",
        "e2e_s": "seconds from arrival to the last token",
        "deadline": "finish by; null without a deadline",
        "ttft_slo_ms": "milliseconds to the first token that were promised; null without a promise",
        "tpot_slo_ms": "milliseconds per token after it that were promised; null without a promise",
        "deadline_met": "null without a deadline",
        "slo_met": "whether every promise (deadline, first token, per token) was kept; null without any",
        "miss_reason": "why a promise was missed; hopeless, overload, waited, slow or failed",
        "served_tier": "the tier that the row ran under, where that is another one",
        "tier_reason": "why it is; not_allowed, over_quota or degraded",
        "num_preemptions": "how often the row gave up its memory to a more urgent one",
        "recomputed_tokens": "tokens computed again after that",
        "target_passes": "forward passes of the model that this row took part in",
        "prefill_flops": "floating-point operations for the prompt, by formula",
        "verify_flops": "floating-point operations for the output, by formula; drafted tokens included",
        "drafted": "tokens that a drafter proposed = unselected + selected",
        "unselected": "those the model was not asked about",
        "selected": "those it was = pruned + verified",
        "pruned": "selected, and dropped before the model computed them",
        "verified": "computed by the model = accepted + rejected",
        "accepted": "what the model would have written itself",
        "rejected": "the others",
        "trimmed": "tokens chosen behind the end of the text, and dropped",
        "verifications": "passes that each added one token more than they accepted; output_tokens = "
        "accepted + verifications + 1 - trimmed",
        "draft_passes": "passes of a draft model or head that this row took part in",
        "accept_histogram": "how many verifications accepted 0, 1, 2, ... tokens",
        "draft_flops": "floating-point operations of drafting, by formula",
        "rejected_flops": "the part of verify_flops that went into rejected tokens",
        "device_s": "its share of the engine's seconds, by its tokens in each step; null if it never ran",
        "draft_s": "the part of device_s for drafting",
        "rejected_s": "the part of device_s for target passes over rejected tokens",
        "energy_j": "the joules attributed to the row, shared like device_s; null without a meter",
        "policy": "speculation policy",
        "engine": "inference engine",
    }
)

DECISION_MEANING: Mapping[str, str] = MappingProxyType(
    {
        "row_index": "as in results.parquet; null for what concerns the whole run",
        "attempt": "attempt of the run, from 1",
        "event": "row (its summary), change, fallback, step (with full), late, degrade, reject, demoted, "
        "power (the cap allows more or less)",
        "reason": "why, one word or a few",
        "time_s": "seconds after the first start of the run",
        "step": "step of the attempt",
        "tier": "the tier that the row ran under",
        "mode": "how it drafted: off, free (no pass of a draft model), chain or tree; in a summary, last",
        "steps": "steps that the line sums up",
        "needed": "A: tokens that its promises asked of the step; in a summary a mean, like budget and gains",
        "budget": "drafted tokens that all rows of the step could have together; of power, tokens per pass",
        "drafted": "candidates to choose from; in a summary the sum, like all counts",
        "slo_nodes": "of these, taken because of its promises",
        "extra_nodes": "of these, taken because they pay",
        "expected": "tokens expected",
        "tokens": "tokens that came of it",
        "gain": "tokens per second (or joule, if that is the objective) against plain decoding, as "
        "predicted, less 1",
        "real_gain": "tokens per second as it was, against plain decoding as predicted, less 1",
        "changes": "how often mode or reason changed",
        "fallbacks": "steps that decoded plainly although the policy is meant to do more",
        "watts": "mean power of the window after which the cap changed what is allowed",
    }
)
