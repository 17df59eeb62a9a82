/* Sizes and checks of a decoder pass; the computation is in decoder_kernel.h. */
#include "decoder.h"

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Buffers start on cache lines of their own. */
static int64_t lines(int64_t floats) { return (floats + 15) / 16 * 16; }

sb_pass_layout sb_layout_pass(const sb_pass *pass) {
    const sb_decoder *d = pass->decoder;
    int64_t tokens = pass->num_tokens, mixed = d->num_heads * d->head_dim;
    int64_t widest = larger(larger(d->hidden, d->inner), mixed);
    sb_pass_layout l = {0};
    l.heads = l.x + lines(tokens * d->hidden);
    l.mixed = l.heads + lines(tokens * (d->num_heads + 2 * d->kv_heads) * d->head_dim);
    l.inner = l.mixed + lines(tokens * mixed);
    l.packed = l.inner + lines(tokens * d->inner);
    l.total = l.packed + lines(larger(tokens, pass->num_wanted) * widest);
    return l;
}

static int outside(const int64_t *index, int64_t count, int64_t limit) {
    for (int64_t i = 0; i < count; i++)
        if (index[i] < 0 || index[i] >= limit) return 1;
    return 0;
}

const char *sb_check_pass(const sb_pass *pass) {
    const sb_decoder *d = pass->decoder;
    if (outside(pass->tokens, pass->num_tokens, d->embedding.rows)) return "a token is not in the vocabulary";
    if (outside(pass->positions, pass->num_tokens, d->positions)) return "a position is past the rotary table";
    if (outside(pass->slots, pass->num_tokens, pass->plan->shape.slots)) return "a slot is outside the cache";
    if (outside(pass->wanted, pass->num_wanted, pass->num_tokens)) return "a wanted token is not in the pass";
    return NULL;
}
