/* The best candidates of every wanted entry.
 *
 * A row of logits is looked through in chunks of fixed size, so that several workers can share it and
 * the result does not depend on how many there are.  Candidates are ranked by log probability or, with
 * noise, by log probability + Gumbel noise of their target token (see sample_kernel.h).
 */
#ifndef SB_DRAFT_SELECT_H
#define SB_DRAFT_SELECT_H

#include "draft.h"
#include "sample_kernel.h"

/* Less is not told apart from it: logits over 1e-30 are finite in double. */
#define COLDEST 1e-30

typedef struct {
    const sb_draft *pass;
    const float *logits;      /* [wanted, draft vocabulary] */
    sb_chunk *chunks;         /* [wanted, chunks] */
    sb_candidate *candidates; /* [wanted, chunks, width] */
} draft_choice;

/* The best so far of one chunk, best first; of equals, the first stands first. */
typedef struct {
    sb_candidate *best;
    int64_t count, width;
    double least; /* what a newcomer has to exceed */
} draft_ranking;

static void rank(draft_ranking *r, double score, int64_t index) {
    if (!(score > r->least)) return;
    int64_t at = r->count < r->width ? r->count++ : r->width - 1;
    for (; at > 0 && r->best[at - 1].score < score; at--) r->best[at] = r->best[at - 1];
    r->best[at] = (sb_candidate){score, index};
    if (r->count == r->width) r->least = r->best[r->width - 1].score;
}

/* The largest of some logits; NaN where any is not finite. */
static float top_logit(const float *x, int64_t count) {
    v8 top = v8_set1(-INFINITY), strange = v8_zero();
    int64_t k = 0;
    for (; k + 8 <= count; k += 8) {
        v8 v = v8_load(x + k);
        strange = strange + v * v8_zero();
        top = v8_max(v, top);
    }
    float best = v8_top(top), odd = v8_sum(strange);
    for (; k < count; k++) {
        odd += x[k] * 0.0f;
        best = x[k] > best ? x[k] : best;
    }
    return odd == odd ? best : NAN;
}

/* Sum of exp((x - top) * inverse); top is one of the x. */
static double sum_exp(const float *x, int64_t count, float top, float inverse) {
    v8 sum = v8_zero();
    for (int64_t k = 0; k < count; k += 8) {
        int64_t left = count - k < 8 ? count - k : 8;
        v8 v = left == 8 ? v8_load(x + k) : v8_load_first(x + k, left);
        v8 e = v8_exp((v - v8_set1(top)) * v8_set1(inverse));
        sum = sum + (v8)(v8_first((int)left) & (v8i)e);
    }
    return v8_sum(sum);
}

static void rank_logits(draft_ranking *r, const float *x, int64_t first, int64_t count) {
    int64_t k = 0;
    for (; k + 8 <= count; k += 8) {
        v8i above = v8_load(x + k) > v8_set1((float)r->least);
        if (!v4l_any((v4l)above)) continue;
        for (int64_t i = k; i < k + 8; i++) rank(r, x[i], first + i);
    }
    for (; k < count; k++) rank(r, x[k], first + k);
}

/* Four at a time; those that pass the quick test of sample_kernel.h are evaluated exactly. */
static void rank_noisy(draft_ranking *r, const draft_choice *c, int64_t row, int64_t first, int64_t count) {
    const int64_t *ids = c->pass->head->target_ids;
    const float *logits = c->logits + row * c->pass->head->lm_head.rows;
    double temperature = fmax(c->pass->temperature[row], COLDEST);
    for (int64_t k = first; k < first + count; k += 4) {
        double scaled[4];
        uint64_t tokens[4];
        for (int i = 0; i < 4; i++) {
            int exists = k + i < first + count;
            scaled[i] = exists ? logits[k + i] / temperature : -INFINITY;
            tokens[i] = exists ? (uint64_t)ids[k + i] + 1 : 0;
        }
        v4d v = v4d_load(scaled);
        v4l open = v > v4d_set1(r->least - LARGEST_NOISE);
        if (!v4l_any(open)) continue;
        v4u index;
        memcpy(&index, tokens, sizeof(index));
        v4u bits = split_mix(index * 0x9E3779B97F4A7C15u + c->pass->noise[row]);
        v4d rest = v4d_set1(2.0) - (v4d)((bits >> 12) | 0x3FF0000000000000u) - v4d_set1(0x1p-52);
        open &= v4d_log2_below(rest) * v4d_set1(0.6931471805599453) < v - v4d_set1(r->least - 1e-6);
        for (int i = 0; i < 4; i++)
            if (open[i]) rank(r, v[i] + gumbel(bits[i]), k + i);
    }
}

static void search_chunk(const draft_choice *c, int64_t row, int64_t chunk) {
    const sb_draft *p = c->pass;
    int64_t rows = p->head->lm_head.rows, place = row * sb_draft_chunks(p->head) + chunk;
    int64_t first = chunk * SB_DRAFT_CHUNK, count = rows - first < SB_DRAFT_CHUNK ? rows - first : SB_DRAFT_CHUNK;
    const float *x = c->logits + row * rows + first;
    double temperature = p->temperature[row] > 0.0 ? fmax(p->temperature[row], COLDEST) : 1.0;
    float top = top_logit(x, count);
    draft_ranking r = {.best = c->candidates + place * p->width, .width = p->width, .least = -INFINITY};
    sb_chunk *out = &c->chunks[place];
    *out = (sb_chunk){.top = top};
    if (isnan(top)) return;
    out->sum = sum_exp(x, count, top, (float)(1.0 / temperature));
    if (p->temperature[row] > 0.0)
        rank_noisy(&r, c, row, first, count);
    else
        rank_logits(&r, x, first, count);
    out->found = r.count;
}

/* Log of the sum of exp(logit / temperature) over a row; NaN where the row is of no use. */
static double row_log_sum(const sb_chunk *chunk, int64_t chunks, double temperature) {
    double top = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < chunks; i++) {
        if (isnan(chunk[i].top)) return NAN;
        top = fmax(top, chunk[i].top);
    }
    for (int64_t i = 0; i < chunks; i++) sum += chunk[i].sum * exp((chunk[i].top - top) / temperature);
    return top / temperature + log(sum);
}

/* The best of what the chunks have left, NULL when they have nothing. */
static const sb_candidate *take_best(sb_chunk *chunk, int64_t chunks, const sb_candidate *candidates, int64_t width) {
    const sb_candidate *winner = NULL;
    int64_t from = 0;
    for (int64_t i = 0; i < chunks; i++) {
        const sb_candidate *next = &candidates[i * width + chunk[i].taken];
        if (chunk[i].taken == chunk[i].found || (winner && winner->score >= next->score)) continue;
        winner = next;
        from = i;
    }
    chunk[from].taken += winner != NULL;
    return winner;
}

/* Merges the candidates of a row's chunks. */
static void finish_row(const draft_choice *c, int64_t row) {
    const sb_draft *p = c->pass;
    int64_t chunks = sb_draft_chunks(p->head), vocabulary = p->head->lm_head.rows;
    double temperature = p->temperature[row] > 0.0 ? fmax(p->temperature[row], COLDEST) : 1.0;
    sb_chunk *chunk = c->chunks + row * chunks;
    double log_sum = row_log_sum(chunk, chunks, temperature);
    for (int64_t at = row * p->width; at < (row + 1) * p->width; at++) {
        const sb_candidate *candidates = c->candidates + row * chunks * p->width;
        const sb_candidate *winner = isnan(log_sum) ? NULL : take_best(chunk, chunks, candidates, p->width);
        p->ids[at] = -1;
        p->log_probs[at] = p->scores[at] = -INFINITY;
        if (!winner) continue;
        double scaled = c->logits[row * vocabulary + winner->index] / temperature;
        p->ids[at] = p->head->target_ids[winner->index];
        p->log_probs[at] = fmin(scaled - log_sum, 0.0);
        p->scores[at] = winner->score - log_sum;
    }
}

static void choose_candidates(const draft_choice *c, sb_pool *pool) {
    int64_t chunks = sb_draft_chunks(c->pass->head);
    for (int64_t i; (i = sb_pool_ticket(pool)) < c->pass->num_wanted * chunks;) search_chunk(c, i / chunks, i % chunks);
    sb_pool_barrier(pool);
    for (int64_t row; (row = sb_pool_ticket(pool)) < c->pass->num_wanted;) finish_row(c, row);
}

#endif
