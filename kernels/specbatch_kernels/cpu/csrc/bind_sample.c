/* Python binding of sampling. */
#include "bindings.h"

#include <stdlib.h>

typedef struct {
    const sb_kernels *kernels;
    sb_sample sample;
} sample_job;

static void sample_task(void *arg, sb_pool *pool, int worker) {
    sample_job *job = arg;
    job->kernels->sample(&job->sample, pool, worker);
}

static PyObject *history_of(PyObject *row) { return PyTuple_GetItem(row, PyTuple_Size(row) - 1); }

/* Everything of the rows but their histories; how long those are together, -1 with an exception set. */
static int64_t parse_rows(PyObject *rows, const sb_sample *s) {
    int64_t total = 0;
    for (int64_t i = 0; i < s->rows; i++) {
        sb_sample_row *row = &s->of[i];
        PyObject *history;
        if (!PyArg_ParseTuple(PyList_GetItem(rows, i), "LddddLKO!", &row->place, &row->temperature, &row->penalty,
                              &row->top_p, &row->min_p, &row->top_k, &row->state, &PyTuple_Type, &history))
            return -1;
        if (row->place < 0 || row->place >= s->logit_rows) {
            PyErr_Format(PyExc_ValueError, "place: there is no row %lld of the logits", (long long)row->place);
            return -1;
        }
        row->history_count = PyTuple_Size(history);
        total += row->history_count;
    }
    return total;
}

/* Fills in the histories; non-zero with an exception set. */
static int parse_histories(PyObject *rows, const sb_sample *s, int64_t *tokens) {
    for (int64_t i = 0; i < s->rows; i++) {
        PyObject *history = history_of(PyList_GetItem(rows, i));
        s->of[i].history = tokens;
        for (int64_t j = 0; j < s->of[i].history_count; j++, tokens++) {
            *tokens = PyLong_AsLongLong(PyTuple_GetItem(history, j));
            if (*tokens < 0 || *tokens >= s->width) {
                if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "history: a token is out of range");
                return 1;
            }
        }
    }
    return 0;
}

static PyObject *list_of(const int64_t *tokens, int64_t count) {
    PyObject *list = PyList_New(count);
    for (int64_t i = 0; list && i < count; i++) {
        PyObject *token = PyLong_FromLongLong(tokens[i]);
        if (!token || PyList_SetItem(list, i, token)) Py_CLEAR(list);
    }
    return list;
}

static PyObject *run(const sb_handle *h, PyObject *rows, sb_sample *s) {
    int64_t total = parse_rows(rows, s);
    if (total < 0) return NULL;
    PyObject *chosen = NULL;
    int64_t *history = malloc((size_t)(total + 1) * sizeof(*history));
    if (!history) return PyErr_NoMemory();
    if (!parse_histories(rows, s, history)) {
        sample_job job = {h->kernels, *s};
        PyObject *done =
            sb_run_task(h, (sb_memory){.per_worker = h->kernels->sample_scratch(s->width)}, sample_task, &job);
        if (done) chosen = list_of(s->out, s->rows);
        Py_XDECREF(done);
    }
    free(history);
    return chosen;
}

static PyObject *sample(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule, *given;
    sb_sample s = {0};
    if (!PyArg_ParseTuple(args, "OKLLO", &capsule, &s.logits, &s.logit_rows, &s.width, &given)) return NULL;
    const sb_handle *h = PyCapsule_GetPointer(capsule, SB_POOL_CAPSULE);
    PyObject *rows = h ? PySequence_List(given) : NULL;
    if (!rows) return NULL;
    s.rows = PyList_Size(rows);
    s.of = calloc((size_t)s.rows + 1, sizeof(*s.of));
    s.out = calloc((size_t)s.rows + 1, sizeof(*s.out));
    PyObject *chosen = s.of && s.out ? run(h, rows, &s) : PyErr_NoMemory();
    free(s.of);
    free(s.out);
    Py_DECREF(rows);
    return chosen;
}

PyMethodDef sb_sample_methods[] = {
    {"sample", sample, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
