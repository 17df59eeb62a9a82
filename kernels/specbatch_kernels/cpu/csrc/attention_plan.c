/* Splits the tokens of a pass into tiles, once for all layers, and checks every index on the way:
 * the kernels themselves trust the plan. */
#include "attention.h"

#include <stdlib.h>

/* Large enough that the transposition of a key block is a small part of a tile's work, small enough
 * that scores and outputs of a tile stay in the first-level cache. */
#define TILE_QUERIES 24

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

int64_t sb_tile_tokens(const sb_attention_shape *s) {
    int64_t group = s->heads / s->kv_heads;
    return group >= TILE_QUERIES ? 1 : TILE_QUERIES / group;
}

static int page_is_bad(const sb_attention_shape *s, int64_t row, int64_t page) {
    if (page < 0 || page >= s->max_pages) return 1;
    int64_t physical = s->page_table[row * s->max_pages + page];
    return physical < 0 || (physical + 1) * s->page_size > s->slots;
}

static const char *check_token(const sb_attention_shape *s, int64_t t, int64_t known_context) {
    int64_t row = s->token_row[t], context = s->context_len[t];
    if (context < 0) return "context_len holds a negative length";
    int64_t pages = (context + s->page_size - 1) / s->page_size;
    for (int64_t p = known_context / s->page_size; p < pages; p++)
        if (page_is_bad(s, row, p)) return "a context position has no valid page";
    if (s->extra_offsets[t + 1] < s->extra_offsets[t]) return "extra_offsets must not decrease";
    for (int64_t e = s->extra_offsets[t]; e < s->extra_offsets[t + 1]; e++) {
        int64_t position = s->extra_positions[e];
        if (position < 0 || page_is_bad(s, row, position / s->page_size))
            return "an extra position has no valid page";
    }
    return NULL;
}

static const char *check(const sb_attention_shape *s) {
    if (s->tokens && (s->extra_offsets[0] != 0 || s->extra_offsets[s->tokens] != s->extras))
        return "extra_offsets must run from 0 to the number of extra positions";
    for (int64_t t = 0; t < s->tokens; t++) {
        if (s->extra_offsets[t + 1] > s->extras) return "extra_offsets exceed the extra positions";
        if (s->token_row[t] < 0 || s->token_row[t] >= s->rows) return "token_row is outside the page table";
        /* The pages of a row's shared context were checked with its previous token. */
        int same = t > 0 && s->token_row[t] == s->token_row[t - 1];
        int64_t known = same ? smaller(s->context_len[t - 1], s->context_len[t]) : 0;
        const char *problem = check_token(s, t, known);
        if (problem) return problem;
    }
    return NULL;
}

static sb_tile make_tile(const sb_attention_shape *s, int64_t first, int64_t count) {
    sb_tile tile = {.first = (int32_t)first, .count = (int32_t)count, .longest = (int32_t)first};
    int64_t least = s->context_len[first];
    int plain = 1;
    for (int64_t t = first; t < first + count; t++) {
        int64_t keys = sb_num_keys(s, t);
        if (keys > tile.keys) {
            tile.keys = (int32_t)keys;
            tile.longest = (int32_t)t;
        }
        least = smaller(least, s->context_len[t]);
        plain &= s->extra_offsets[t + 1] == s->extra_offsets[t];
    }
    /* Without extras the tokens' keys are prefixes of one sequence: every key can be shared. */
    int whole = plain || count == 1;
    tile.common = whole ? tile.keys : (int32_t)least;
    return tile;
}

static int64_t max_blocks(const sb_attention_plan *plan) {
    int64_t keys = 0;
    for (int64_t i = 0; i < plan->num_tiles; i++)
        if (plan->tiles[i].keys > keys) keys = plan->tiles[i].keys;
    return (keys + SB_BLOCK - 1) / SB_BLOCK;
}

const char *sb_attention_prepare(sb_attention_plan *plan, const sb_attention_shape *shape, int workers) {
    *plan = (sb_attention_plan){.shape = *shape};
    const char *problem = check(shape);
    if (problem) return problem;
    plan->tiles = malloc((size_t)(shape->tokens + 1) * sizeof(sb_tile));
    if (!plan->tiles) return "out of memory";
    for (int64_t first = 0, next; first < shape->tokens; first = next) {
        int64_t end = smaller(shape->tokens, first + sb_tile_tokens(shape));
        for (next = first + 1; next < end && shape->token_row[next] == shape->token_row[first];) next++;
        plan->tiles[plan->num_tiles++] = make_tile(shape, first, next - first);
    }
    plan->max_blocks = max_blocks(plan);
    /* With few tiles the workers would wait for the longest one. */
    plan->split = workers > 1 && plan->num_tiles < 4 * workers && plan->max_blocks > 0;
    if (!plan->split) return NULL;
    int64_t stride = plan->max_blocks * sb_record(shape);
    plan->partials = malloc((size_t)(shape->tokens * shape->heads * stride) * sizeof(float));
    return plan->partials ? NULL : "out of memory";
}

void sb_attention_release(sb_attention_plan *plan) {
    free(plan->tiles);
    free(plan->partials);
    plan->tiles = NULL;
    plan->partials = NULL;
}
