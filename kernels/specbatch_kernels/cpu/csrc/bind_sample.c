/* Python binding of sampling. */
#include "bindings.h"

typedef struct {
    const sb_kernels *kernels;
    sb_sample sample;
} sample_job;

static void sample_task(void *arg, sb_pool *pool, int worker) {
    sample_job *job = arg;
    job->kernels->sample(&job->sample, pool, worker);
}

static int history_is_bad(const sb_sample *s, int64_t count) {
    if (s->history_offsets[0] != 0 || s->history_offsets[s->rows] != count) return 1;
    for (int64_t r = 0; r < s->rows; r++)
        if (s->history_offsets[r + 1] < s->history_offsets[r]) return 1;
    for (int64_t i = 0; i < count; i++)
        if (s->history[i] < 0 || s->history[i] >= s->width) return 1;
    return 0;
}

static PyObject *sample(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    sample_job job = {0};
    sb_sample *s = &job.sample;
    long long history;
    if (!PyArg_ParseTuple(args, "OKK(KKKKKK)(KKL)LL", &capsule, &s->logits, &s->out, &s->temperature, &s->penalty,
                          &s->top_p, &s->min_p, &s->top_k, &s->state, &s->history_offsets, &s->history, &history,
                          &s->rows, &s->width))
        return NULL;
    const sb_handle *h = PyCapsule_GetPointer(capsule, SB_POOL_CAPSULE);
    if (!h) return NULL;
    if (history_is_bad(s, history))
        return PyErr_Format(PyExc_ValueError, "history: offsets or tokens are out of range");
    job.kernels = h->kernels;
    return sb_run_task(h, (sb_memory){.per_worker = h->kernels->sample_scratch(s->width)}, sample_task, &job);
}

PyMethodDef sb_sample_methods[] = {
    {"sample", sample, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
