/* Python binding of paged attention. */
#include "bindings.h"

typedef struct {
    const sb_kernels *kernels;
    sb_attention_plan plan;
    sb_attention_data data;
} attention_job;

static void attention_task(void *arg, sb_pool *pool, int worker) {
    attention_job *job = arg;
    job->kernels->attention(&job->plan, &job->data, pool, worker);
}

static const char *run_attention(const sb_handle *h, attention_job *job, const sb_attention_shape *shape) {
    sb_memory memory = {.per_worker = h->kernels->attention_scratch(shape)};
    const char *problem = sb_attention_prepare(&job->plan, shape, sb_pool_workers(h->pool));
    if (!problem && sb_pool_run(h->pool, memory, attention_task, job)) problem = "out of memory";
    sb_attention_release(&job->plan);
    return problem;
}

static PyObject *attention(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    attention_job job;
    sb_attention_shape s;
    sb_attention_data *d = &job.data;
    if (!PyArg_ParseTuple(args, "O(KKKKf)(KKKKK)(LLLL)(LLLLL)", &capsule, &d->q, &d->k_cache, &d->v_cache, &d->out,
                          &d->scale, &s.page_table, &s.token_row, &s.context_len, &s.extra_offsets,
                          &s.extra_positions, &s.tokens, &s.heads, &s.kv_heads, &s.head_dim, &s.rows, &s.max_pages,
                          &s.page_size, &s.slots, &s.extras))
        return NULL;
    const sb_handle *h = PyCapsule_GetPointer(capsule, SB_POOL_CAPSULE);
    if (!h) return NULL;
    job.kernels = h->kernels;
    d->q_stride = s.heads * s.head_dim;
    const char *problem;
    Py_BEGIN_ALLOW_THREADS
    problem = run_attention(h, &job, &s);
    Py_END_ALLOW_THREADS
    if (problem) return PyErr_Format(PyExc_ValueError, "paged attention: %s", problem);
    Py_RETURN_NONE;
}

PyMethodDef sb_attention_methods[] = {
    {"attention", attention, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
