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

typedef struct {
    const sb_kernels *kernels;
    sb_draft pass;
} draft_job;

static void draft_task(void *arg, sb_pool *pool, int worker) {
    draft_job *job = arg;
    job->kernels->draft(&job->pass, pool, worker);
}

static sb_memory draft_memory(const sb_kernels *kernels, const sb_draft *pass) {
    size_t layers = kernels->linear_scratch(sb_draft_widest(pass->head));
    size_t attention = kernels->attention_scratch(&pass->plan->shape);
    return (sb_memory){
        .shared = (size_t)sb_layout_draft(pass).total,
        .per_worker = layers > attention ? layers : attention,
    };
}

static const char *run_draft(const sb_handle *h, draft_job *job, const sb_attention_shape *shape) {
    sb_attention_plan plan;
    const char *problem = sb_attention_prepare(&plan, shape, sb_pool_workers(h->pool));
    job->pass.plan = &plan;
    if (!problem) problem = sb_check_draft(&job->pass);
    if (!problem && sb_pool_run(h->pool, draft_memory(h->kernels, &job->pass), draft_task, job))
        problem = "out of memory";
    sb_attention_release(&plan);
    return problem;
}

static PyObject *draft_pass(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *pool, *head;
    draft_job job = {0};
    sb_draft *p = &job.pass;
    sb_attention_shape s = {0};
    if (!PyArg_ParseTuple(args, "OO(KKKKLL)(KKKL)(KKKKK)(LLLLL)(KK)(KKKKKKKL)", &pool, &head, &p->tokens,
                          &p->positions, &p->slots, &p->wanted, &p->num_tokens, &p->num_wanted, &p->features,
                          &p->states, &p->state_index, &p->num_states, &s.page_table, &s.token_row, &s.context_len,
                          &s.extra_offsets, &s.extra_positions, &s.rows, &s.max_pages, &s.page_size, &s.slots,
                          &s.extras, &p->k_cache, &p->v_cache, &p->temperature, &p->noise, &p->feedback, &p->logits,
                          &p->ids, &p->log_probs, &p->scores, &p->width))
        return NULL;
    const sb_handle *h = PyCapsule_GetPointer(pool, SB_POOL_CAPSULE);
    const sb_head *d = h ? PyCapsule_GetPointer(head, SB_HEAD_CAPSULE) : NULL;
    if (!d) return NULL;
    job.kernels = h->kernels;
    p->head = d;
    s.tokens = p->num_tokens, s.heads = d->num_heads, s.kv_heads = d->kv_heads, s.head_dim = d->head_dim;
    const char *problem;
    Py_BEGIN_ALLOW_THREADS
    problem = run_draft(h, &job, &s);
    Py_END_ALLOW_THREADS
    if (problem) return PyErr_Format(PyExc_ValueError, "draft pass: %s", problem);
    Py_RETURN_NONE;
}

PyMethodDef sb_draft_methods[] = {
    {"head_new", head_new, METH_VARARGS, NULL},
    {"draft_pass", draft_pass, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
