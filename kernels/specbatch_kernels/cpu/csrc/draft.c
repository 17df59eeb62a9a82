/* Sizes and checks of a draft pass; the computation is in draft_kernel.h. */
#include "draft.h"

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

int64_t sb_draft_widest(const sb_head *h) {
    int64_t widest = larger(h->features * h->hidden, 2 * h->hidden);
    return larger(widest, larger(h->inner, h->num_heads * h->head_dim));
}

/* Takes `bytes` behind `*end`, on cache lines of their own. */
static int64_t take(int64_t *end, int64_t bytes) {
    int64_t start = *end;
    *end += (bytes + 63) / 64 * 64;
    return start;
}

sb_draft_layout sb_layout_draft(const sb_draft *d) {
    const sb_head *h = d->head;
    const int64_t word = sizeof(float), tokens = d->num_tokens, wanted = d->num_wanted;
    int64_t end = 0, chunks = wanted * sb_draft_chunks(h);
    sb_draft_layout l = {0};
    l.x = take(&end, tokens * h->hidden * word);
    l.pair = take(&end, tokens * 2 * h->hidden * word);
    l.features = take(&end, h->feature_norms ? tokens * h->features * h->hidden * word : 0);
    l.heads = take(&end, tokens * (h->num_heads + 2 * h->kv_heads) * h->head_dim * word);
    l.mixed = take(&end, tokens * h->num_heads * h->head_dim * word);
    l.inner = take(&end, tokens * h->inner * word);
    l.packed = take(&end, larger(tokens, wanted) * sb_draft_widest(h) * word);
    l.normed = take(&end, wanted * h->hidden * word);
    l.logits = take(&end, d->logits ? 0 : wanted * h->lm_head.rows * word);
    l.chunks = take(&end, chunks * (int64_t)sizeof(sb_chunk));
    l.candidates = take(&end, chunks * d->width * (int64_t)sizeof(sb_candidate));
    l.total = end;
    return l;
}

static int outside(const int64_t *index, int64_t count, int64_t limit) {
    for (int64_t i = 0; i < count; i++)
        if (index[i] < 0 || index[i] >= limit) return 1;
    return 0;
}

const char *sb_check_draft(const sb_draft *d) {
    const sb_head *h = d->head;
    if (!d->chained && outside(d->tokens, d->num_tokens, h->embedding.rows)) return "a token is not in the vocabulary";
    if (outside(d->positions, d->num_tokens, h->positions)) return "a position is past the rotary table";
    if (outside(d->slots, d->num_tokens, d->plan->shape.slots)) return "a slot is outside the cache";
    if (outside(d->wanted, d->num_wanted, d->num_tokens)) return "a wanted entry is not in the pass";
    if (!d->features && outside(d->state_index, d->num_tokens, d->num_states)) return "there is no such state";
    if (d->width < 1 && d->num_wanted) return "at least one candidate must be asked for";
    for (int64_t i = 0; i < d->num_wanted; i++)
        if (!(d->temperature[i] >= 0.0)) return "a temperature is negative or not a number";
    return NULL;
}
