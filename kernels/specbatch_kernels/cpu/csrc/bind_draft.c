/* Python bindings of draft heads. */
#include "bindings.h"

#include <stdlib.h>

static void head_free(PyObject *capsule) { free(PyCapsule_GetPointer(capsule, SB_HEAD_CAPSULE)); }

static PyObject *head_new(PyObject *self, PyObject *args) {
    (void)self;
    sb_head *h = calloc(1, sizeof(*h));
    if (!h) return PyErr_NoMemory();
    PyObject *capsule = NULL;
    if (PyArg_ParseTuple(args,
                         "(" SB_MATRIX_FORMAT SB_MATRIX_FORMAT SB_MATRIX_FORMAT SB_MATRIX_FORMAT SB_MATRIX_FORMAT
                             SB_MATRIX_FORMAT SB_MATRIX_FORMAT ")(KKKKKKKK)(LLLLLLL)(pp)f",
                         SB_MATRIX_FIELDS(&h->embedding), SB_MATRIX_FIELDS(&h->fc), SB_MATRIX_FIELDS(&h->qkv),
                         SB_MATRIX_FIELDS(&h->output), SB_MATRIX_FIELDS(&h->gate_up), SB_MATRIX_FIELDS(&h->down),
                         SB_MATRIX_FIELDS(&h->lm_head), &h->feature_norms, &h->joint_norm, &h->embed_norm,
                         &h->hidden_norm, &h->mlp_norm, &h->final_norm, &h->rotary, &h->target_ids, &h->features,
                         &h->hidden, &h->inner, &h->num_heads, &h->kv_heads, &h->head_dim, &h->positions,
                         &h->norm_output, &h->norm_residual, &h->eps))
        capsule = PyCapsule_New(h, SB_HEAD_CAPSULE, head_free);
    if (!capsule) free(h);
    return capsule;
}

/* Passes that run one after another in one task. */
typedef struct {
    const sb_kernels *kernels;
    sb_draft *passes;
    sb_attention_shape *shapes;
    int64_t count;
} draft_job;

static void draft_task(void *arg, sb_pool *pool, int worker) {
    draft_job *job = arg;
    job->kernels->draft(job->passes, job->count, pool, worker);
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static sb_memory draft_memory(const draft_job *job) {
    sb_memory memory = {.per_worker = job->kernels->linear_scratch(sb_draft_widest(job->passes[0].head))};
    for (int64_t i = 0; i < job->count; i++) {
        memory.shared = larger(memory.shared, (size_t)sb_layout_draft(&job->passes[i]).total);
        memory.per_worker = larger(memory.per_worker, job->kernels->attention_scratch(&job->passes[i].plan->shape));
    }
    return memory;
}

static const char *run_draft(const sb_handle *h, draft_job *job) {
    sb_attention_plan *plans = calloc((size_t)job->count, sizeof(*plans));
    if (!plans) return "out of memory";
    const char *problem = NULL;
    for (int64_t i = 0; i < job->count && !problem; i++) {
        problem = sb_attention_prepare(&plans[i], &job->shapes[i], sb_pool_workers(h->pool));
        job->passes[i].plan = &plans[i];
        if (!problem) problem = sb_check_draft(&job->passes[i]);
    }
    if (!problem && sb_pool_run(h->pool, draft_memory(job), draft_task, job)) problem = "out of memory";
    for (int64_t i = 0; i < job->count; i++) sb_attention_release(&plans[i]);
    free(plans);
    return problem;
}

/* The passes of a chain behind the first. */
typedef struct {
    const int64_t *counts;            /* [levels] entries of each, not growing */
    const int64_t *positions, *slots; /* [entries] of all levels */
    const int32_t *token_row, *context_len, *extra_positions;
    const int32_t *extra_offsets; /* [entries + levels]: each level's begin at 0 */
    const double *least;          /* [entries of the first pass] */
    int64_t levels, extras;
} chain_levels;

/* Entry t of a pass continues candidate t of the pass before. */
static void follow(sb_draft *pass, const sb_draft *before, const chain_levels *c, int64_t done, int64_t count) {
    int64_t skip = before->num_wanted;
    *pass = *before;
    pass->chained = 1;
    pass->tokens = before->ids, pass->states = before->feedback, pass->features = NULL, pass->logits = NULL;
    pass->positions = c->positions + done, pass->slots = c->slots + done;
    pass->temperature += skip, pass->noise += skip, pass->feedback += skip * pass->head->hidden;
    pass->ids += skip, pass->log_probs += skip, pass->scores += skip;
    pass->num_tokens = pass->num_wanted = count, pass->num_states = skip;
}

static const char *lay_out_chain(draft_job *job, const chain_levels *c, const int64_t *identity) {
    int64_t done = 0, extras = 0;
    if (c->levels && job->passes[0].width != 1) return "a chain has one candidate per entry";
    for (int64_t i = 1; i <= c->levels; i++) {
        int64_t count = c->counts[i - 1];
        if (count < 1 || count > job->passes[i - 1].num_wanted) return "a level of the chain has too many entries";
        follow(&job->passes[i], &job->passes[i - 1], c, done, count);
        job->passes[i].wanted = job->passes[i].state_index = identity;
        sb_attention_shape *s = &job->shapes[i];
        *s = job->shapes[0];
        s->tokens = count, s->token_row = c->token_row + done, s->context_len = c->context_len + done;
        s->extra_offsets = c->extra_offsets + done + (i - 1), s->extra_positions = c->extra_positions + extras;
        s->extras = s->extra_offsets[count];
        if (s->extras < 0 || s->extras > c->extras - extras) return "extra_offsets exceed the extra positions";
        extras += s->extras;
        done += count;
    }
    return NULL;
}

static const char *run_chain(const sb_handle *h, const sb_draft *first, const sb_attention_shape *shape,
                             const chain_levels *c) {
    const char *problem = "out of memory";
    draft_job job = {.kernels = h->kernels, .count = c->levels + 1};
    int64_t *identity = malloc((size_t)(first->num_wanted + 1) * sizeof(*identity));
    job.passes = calloc((size_t)job.count, sizeof(*job.passes));
    job.shapes = calloc((size_t)job.count, sizeof(*job.shapes));
    if (identity && job.passes && job.shapes) {
        for (int64_t i = 0; i < first->num_wanted; i++) identity[i] = i;
        job.passes[0] = *first;
        job.passes[0].least = c->least;
        job.shapes[0] = *shape;
        problem = lay_out_chain(&job, c, identity);
        if (!problem) problem = run_draft(h, &job);
    }
    free(job.shapes);
    free(job.passes);
    free(identity);
    return problem;
}

static PyObject *draft_pass(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *pool, *head;
    sb_draft p = {0};
    sb_attention_shape s = {0};
    chain_levels c = {0};
    if (!PyArg_ParseTuple(args, "OO(KKKKLL)(KKKL)(KKKKK)(LLLLL)(KK)(KKKKKKKL)(KKKKKKKKLL)", &pool, &head, &p.tokens,
                          &p.positions, &p.slots, &p.wanted, &p.num_tokens, &p.num_wanted, &p.features, &p.states,
                          &p.state_index, &p.num_states, &s.page_table, &s.token_row, &s.context_len,
                          &s.extra_offsets, &s.extra_positions, &s.rows, &s.max_pages, &s.page_size, &s.slots,
                          &s.extras, &p.k_cache, &p.v_cache, &p.temperature, &p.noise, &p.feedback, &p.logits, &p.ids,
                          &p.log_probs, &p.scores, &p.width, &c.counts, &c.positions, &c.slots, &c.token_row,
                          &c.context_len, &c.extra_offsets, &c.extra_positions, &c.least, &c.levels, &c.extras))
        return NULL;
    const sb_handle *h = PyCapsule_GetPointer(pool, SB_POOL_CAPSULE);
    const sb_head *d = h ? PyCapsule_GetPointer(head, SB_HEAD_CAPSULE) : NULL;
    if (!d) return NULL;
    p.head = d;
    s.tokens = p.num_tokens, s.heads = d->num_heads, s.kv_heads = d->kv_heads, s.head_dim = d->head_dim;
    const char *problem;
    Py_BEGIN_ALLOW_THREADS
    problem = run_chain(h, &p, &s, &c);
    Py_END_ALLOW_THREADS
    if (problem) return PyErr_Format(PyExc_ValueError, "draft pass: %s", problem);
    Py_RETURN_NONE;
}

PyMethodDef sb_draft_methods[] = {
    {"head_new", head_new, METH_VARARGS, NULL},
    {"draft_pass", draft_pass, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
