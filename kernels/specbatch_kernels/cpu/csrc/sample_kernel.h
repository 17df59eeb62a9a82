/* Filters and Gumbel-argmax over the vocabulary in double precision.
 *
 * Every filter keeps an upper set (all tokens at or above some log weight), so filters only raise one
 * threshold.  Noise is evaluated exactly for the few tokens that can still win: the noise of a token
 * is -log(-log u) <= -log(1 - u), so it needs log(1 - u) < w - best to lift log weight w over `best`.
 */
#ifndef SB_SAMPLE_KERNEL_H
#define SB_SAMPLE_KERNEL_H

#include "kernels.h"
#include "lookup_kernel.h"
#include "simd64.h"

/* -log(-log(1 - 2^-54)): no draw is larger. */
#define LARGEST_NOISE 37.5

static size_t sample_scratch(int64_t width) { return (size_t)(2 * (width + 4)) * sizeof(double); }

/* ---- log weights ------------------------------------------------------------------------------- */

/* Repetition penalty of CTRL (Keskar et al. 2019, section 4.1). */
static void penalise(double *values, const sb_sample_row *row) {
    if (row->penalty == 1.0) return;
    for (int64_t i = 0; i < row->history_count; i++) {
        double *value = &values[row->history[i]];
        double moved = *value > 0 ? *value / row->penalty : *value * row->penalty;
        *value = fmin(fmax(moved, -1.7976931348623157e308), 1.7976931348623157e308);
    }
}

static int64_t first_largest(const double *values, int64_t count) {
    int64_t best = 0;
    for (int64_t t = 1; t < count; t++)
        if (values[t] > values[best]) best = t;
    return best;
}

/* Subtracts the maximum first: divided by a temperature of 1e-310 the largest would be infinite. */
static void scale_values(double *values, int64_t count, double top, double temperature) {
    int64_t t = 0;
    for (; t + 4 <= count; t += 4)
        v4d_store(values + t, (v4d_load(values + t) - v4d_set1(top)) / v4d_set1(temperature));
    for (; t < count; t++) values[t] = (values[t] - top) / temperature;
    for (; t % 4; t++) values[t] = -INFINITY; /* whole vectors from here on */
}

/* ---- top-k ------------------------------------------------------------------------------------- */

/* heap[0] is the smallest of `count`; sifts a new root down. */
static void sift_down(double *heap, int64_t count, double value) {
    int64_t at = 0;
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= value) break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

/* The k-th largest value, 0 < k < count; `heap` has room for k. */
static double kth_largest(const double *values, int64_t count, int64_t k, double *heap) {
    for (int64_t i = 0; i < k; i++) heap[i] = -INFINITY;
    for (int64_t t = 0; t < count; t += 4) {
        if (!v4l_any(v4d_load(values + t) > v4d_set1(heap[0]))) continue;
        for (int64_t i = t; i < t + 4; i++)
            if (values[i] > heap[0]) sift_down(heap, k, values[i]);
    }
    return heap[0];
}

/* ---- top-p ------------------------------------------------------------------------------------- */

/* Sum of weights at or above the threshold. */
static double mass_above(const double *values, int64_t count, double threshold) {
    v4d sum = v4d_set1(0.0);
    for (int64_t t = 0; t < count; t += 4) {
        v4d v = v4d_load(values + t);
        v4l kept = v >= v4d_set1(threshold);
        if (v4l_any(kept)) sum = sum + v4d_select(kept, v4d_exp(v), v4d_set1(0.0));
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* Collects the values at or above the threshold. */
static int64_t collect(double *into, const double *values, int64_t count, double threshold) {
    int64_t found = 0;
    for (int64_t t = 0; t < count; t += 4) {
        if (!v4l_any(v4d_load(values + t) >= v4d_set1(threshold))) continue;
        for (int64_t i = t; i < t + 4; i++)
            if (values[i] >= threshold) into[found++] = values[i];
    }
    return found;
}

static double median(double a, double b, double c) { return fmax(fmin(a, b), fmin(fmax(a, b), c)); }

static void swap(double *a, double *b) {
    double t = *a;
    *a = *b;
    *b = t;
}

/* Numbers and weights of what is larger than a pivot and of what equals it. */
typedef struct {
    int64_t larger, equal;
    double larger_mass, equal_mass;
} split;

/* Moves what is larger to the front, then what is equal. */
static split split_at(double *values, int64_t count, double pivot) {
    split s = {0};
    for (int64_t i = 0; i < count; i++) {
        double v = values[i];
        if (v < pivot) continue;
        swap(&values[i], &values[s.larger + s.equal]);
        if (v > pivot) {
            s.larger_mass += exp(v);
            swap(&values[s.larger + s.equal], &values[s.larger]);
            s.larger++;
        } else {
            s.equal_mass += exp(v);
            s.equal++;
        }
    }
    return s;
}

/* The largest value such that it and all larger ones together weigh at least `wanted` (quickselect by
 * weight); the smallest of all where rounding leaves them short. */
static double weighted_select(double *values, int64_t count, double wanted) {
    for (;;) {
        double pivot = median(values[0], values[count / 2], values[count - 1]);
        split s = split_at(values, count, pivot);
        if (s.larger && s.larger_mass >= wanted) {
            count = s.larger;
            continue;
        }
        wanted -= s.larger_mass + s.equal_mass;
        if (wanted <= 0 || s.larger + s.equal == count) return pivot;
        values += s.larger + s.equal;
        count -= s.larger + s.equal;
    }
}

/* Log weight of the last token that is needed to reach the share `top_p` of what is above the threshold.
 * The likely ones usually suffice: first those within e^-4 of the largest are looked at, then more. */
static double top_p_threshold(const double *values, int64_t count, double threshold, double top_p, double *spare) {
    double wanted = top_p * mass_above(values, count, threshold), from = -4.0;
    while (from > threshold && from > -1e4 && mass_above(values, count, from) < wanted) from *= 2.0;
    return weighted_select(spare, collect(spare, values, count, fmax(from, threshold)), wanted);
}

/* ---- noise ------------------------------------------------------------------------------------- */

/* Output function of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014, figure 16). */
SB_INLINE v4u split_mix(v4u z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

SB_INLINE v4u token_bits(uint64_t state, int64_t token) {
    v4u index = (v4u){1, 2, 3, 4} + (uint64_t)token;
    return split_mix(index * 0x9E3779B97F4A7C15u + state);
}

/* Standard Gumbel draw from 64 random bits. */
static double gumbel(uint64_t bits) { return -log(-log(((double)(bits >> 11) + 0.5) * 0x1p-53)); }

typedef struct {
    double value;
    int64_t token;
} winner;

/* Tokens [t, t + 4): those that pass the quick test are evaluated exactly. */
static void contest(winner *best, const double *values, int64_t t, double threshold, uint64_t state) {
    v4d v = v4d_load(values + t);
    v4l open = (v >= v4d_set1(threshold)) & (v > v4d_set1(best->value - LARGEST_NOISE));
    if (!v4l_any(open)) return;
    v4u bits = token_bits(state, t);
    /* 1 - u, at most 2^-52 too small: 53 bits of u begin with these 52. */
    v4d rest = v4d_set1(2.0) - (v4d)((bits >> 12) | 0x3FF0000000000000u) - v4d_set1(0x1p-52);
    open &= v4d_log2_below(rest) * v4d_set1(0.6931471805599453) < v - v4d_set1(best->value - 1e-6);
    if (!v4l_any(open)) return;
    for (int i = 0; i < 4; i++) {
        if (!open[i]) continue;
        double value = v[i] + gumbel(bits[i]);
        if (value > best->value) *best = (winner){value, t + i};
    }
}

/* ---- a row ------------------------------------------------------------------------------------- */

static double row_threshold(const sb_sample_row *row, int64_t width, const double *values, double *spare) {
    double threshold = -INFINITY;
    if (row->top_k > 0 && row->top_k < width) threshold = kth_largest(values, width, row->top_k, spare);
    if (row->top_p < 1.0) threshold = top_p_threshold(values, width, threshold, row->top_p, spare);
    if (row->min_p > 0.0) threshold = fmax(threshold, log(row->min_p));
    return threshold;
}

static int64_t sample_row(const float *logits, int64_t width, const sb_sample_row *row, double *values) {
    int64_t likely = argmax_row(logits, width);
    if (likely < 0 || !isfinite(logits[likely])) return -1;
    if (row->temperature == 0.0 && row->penalty == 1.0) return likely;
    for (int64_t t = 0; t < width; t++) values[t] = logits[t];
    penalise(values, row);
    if (row->penalty != 1.0) likely = first_largest(values, width);
    if (row->temperature == 0.0) return likely;
    scale_values(values, width, values[likely], row->temperature);
    double threshold = row_threshold(row, width, values, values + (width + 3) / 4 * 4);
    /* A good first candidate makes the quick test strict. */
    winner best = {gumbel(token_bits(row->state, likely)[0]), likely};
    for (int64_t t = 0; t < width; t += 4) contest(&best, values, t, threshold, row->state);
    return best.token;
}

static void sample(const sb_sample *s, sb_pool *pool, int worker) {
    double *values = sb_pool_scratch(pool, worker);
    for (int64_t i; (i = sb_pool_ticket(pool)) < s->rows;)
        s->out[i] = sample_row(s->logits + s->of[i].place * s->width, s->width, &s->of[i], values);
}

#endif
