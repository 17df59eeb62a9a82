/* Python bindings of the thread pool, of the loops that measure the processor, and of memory advice. */
#define _DEFAULT_SOURCE /* madvise, syscall */
#include "bindings.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef SB_HAS_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#endif

#if defined(__x86_64__)
static int has_avx2(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

/* The system must save the wide registers, too, which these ask about. */
static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

#ifdef SB_HAS_AMX
/* As the system numbers them: asking to use part of the processor's state, and the contents of the tile registers. */
#define REQUEST_STATE 0x1023
#define TILE_DATA 18

/* Not every compiler's __builtin_cpu_supports knows AMX: bits 24 (tiles) and 25 (integers) of leaf 7.  The system
 * permits the tile registers to a process that asks, if it can save them. */
static int has_amx(void) {
    unsigned a, b, c, d;
    const unsigned both = 3u << 24;
    return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & both) == both &&
           !syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA);
}
#endif

/* NULL where the processor lacks it. */
static const sb_kernels *find_kernels(const char *name) {
#ifdef SB_HAS_AMX
    if (!strcmp(name, "amx")) return has_amx() ? &sb_kernels_amx : NULL;
#endif
#if defined(__x86_64__)
    if (!strcmp(name, "avx512")) return has_avx512() ? &sb_kernels_avx512 : NULL;
    if (!strcmp(name, "avx2")) return has_avx2() ? &sb_kernels_avx2 : NULL;
#endif
    return strcmp(name, "portable") ? NULL : &sb_kernels_portable;
}

static void handle_free(PyObject *capsule) {
    sb_handle *h = PyCapsule_GetPointer(capsule, SB_POOL_CAPSULE);
    if (!h) return;
    if (h->pool) sb_pool_free(h->pool);
    free(h);
}

static PyObject *best_isa(PyObject *self, PyObject *args) {
    (void)self, (void)args;
    static const char *const best_first[] = {"amx", "avx512", "avx2", "portable"};
    int i = 0;
    while (!find_kernels(best_first[i])) i++;
    return PyUnicode_FromString(best_first[i]);
}

static int read_cores(PyObject *cores, int *into, int count) {
    for (int i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(cores, i);
        if (!item) return 0;
        into[i] = (int)PyLong_AsLong(item);
        Py_DECREF(item);
        if (PyErr_Occurred()) return 0;
    }
    return 1;
}

static PyObject *wrap_pool(sb_pool *pool, const sb_kernels *kernels) {
    sb_handle *h = malloc(sizeof(*h));
    if (!pool || !h) {
        if (pool) sb_pool_free(pool);
        free(h);
        PyErr_SetString(PyExc_RuntimeError, "the worker threads could not be started");
        return NULL;
    }
    *h = (sb_handle){pool, kernels};
    PyObject *capsule = PyCapsule_New(h, SB_POOL_CAPSULE, handle_free);
    if (!capsule) {
        sb_pool_free(pool);
        free(h);
    }
    return capsule;
}

static PyObject *pool_new(PyObject *self, PyObject *args) {
    (void)self;
    int workers, spin_us, list[1024];
    PyObject *cores;
    const char *isa;
    if (!PyArg_ParseTuple(args, "iOis", &workers, &cores, &spin_us, &isa)) return NULL;
    const sb_kernels *kernels = find_kernels(isa);
    if (!kernels) return PyErr_Format(PyExc_ValueError, "this processor has no instruction set '%s'", isa);
    if (workers < 1 || workers > 1024) return PyErr_Format(PyExc_ValueError, "workers must be 1 to 1024");
    if (cores != Py_None && !read_cores(cores, list, workers)) return NULL;
    sb_pool *pool;
    Py_BEGIN_ALLOW_THREADS
    pool = sb_pool_new(workers, cores == Py_None ? NULL : list, spin_us);
    Py_END_ALLOW_THREADS
    return wrap_pool(pool, kernels);
}

/* Every worker repeats one of the two loops on its own part of the data. */
typedef struct {
    const sb_kernels *kernels;
    const float *data;
    int64_t count; /* floats, or iterations when there is no data */
    _Atomic float sink;
} probe_job;

static void probe_task(void *arg, sb_pool *pool, int worker) {
    probe_job *job = arg;
    if (!job->data) {
        job->sink = job->kernels->probe_fma(job->count);
        return;
    }
    int64_t part = job->count / sb_pool_workers(pool) / 64 * 64;
    job->sink = job->kernels->probe_read(job->data + worker * part, part);
}

static PyObject *probe(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    probe_job job = {0};
    if (!PyArg_ParseTuple(args, "OKL", &capsule, &job.data, &job.count)) return NULL;
    sb_handle *h = PyCapsule_GetPointer(capsule, SB_POOL_CAPSULE);
    if (!h) return NULL;
    job.kernels = h->kernels;
    return sb_run_task(h, (sb_memory){0}, probe_task, &job);
}

static PyObject *advise_large_pages(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long address, size;
    if (!PyArg_ParseTuple(args, "KK", &address, &size)) return NULL;
#if defined(MADV_HUGEPAGE)
    /* Whole small pages inside the range; the system looks for large ones among them. */
    unsigned long long page = (unsigned long long)sysconf(_SC_PAGESIZE), start = (address + page - 1) / page * page;
    unsigned long long end = (address + size) / page * page;
    if (end > start) madvise((void *)start, end - start, MADV_HUGEPAGE);
#endif
    Py_RETURN_NONE;
}

PyObject *sb_run_task(const sb_handle *handle, sb_memory memory, sb_task task, void *job) {
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = sb_pool_run(handle->pool, memory, task, job);
    Py_END_ALLOW_THREADS
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyMethodDef sb_pool_methods[] = {
    {"best_isa", best_isa, METH_NOARGS, NULL},
    {"pool_new", pool_new, METH_VARARGS, NULL},
    {"probe", probe, METH_VARARGS, NULL},
    {"advise_large_pages", advise_large_pages, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
