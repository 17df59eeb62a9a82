/* pthread_setaffinity_np is a GNU extension. */
#define _GNU_SOURCE

#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* A counter to wait on.  Separate cache lines keep spinning readers off the other fields. */
typedef struct {
    _Alignas(64) atomic_uint value;
    atomic_int sleepers;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
} gate;

typedef struct {
    void *memory;
    size_t bytes;
} scratch;

typedef struct {
    sb_pool *pool;
    int worker;
} seat;

struct sb_pool {
    int workers;
    int started; /* threads running, at most workers - 1 */
    int64_t spin_ns;
    int *cores; /* NULL: not pinned */
    pthread_t *threads;
    seat *seats;
    scratch *scratches; /* of the workers, then the shared one */
    pthread_mutex_t callers;
    sb_task task;
    void *arg;
    int stopping;
    gate job;
    gate phase;
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_llong ticket;
};

static void relax(void) {
#if defined(__x86_64__)
    _mm_pause();
#else
    sched_yield();
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int gate_init(gate *g) {
    atomic_init(&g->value, 0);
    atomic_init(&g->sleepers, 0);
    return pthread_mutex_init(&g->mutex, NULL) | pthread_cond_init(&g->changed, NULL);
}

static void gate_destroy(gate *g) {
    pthread_mutex_destroy(&g->mutex);
    pthread_cond_destroy(&g->changed);
}

static int spin_until_changed(gate *g, unsigned seen, int64_t spin_ns) {
    int64_t start = now_ns();
    do {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&g->value, memory_order_acquire) != seen) return 1;
            relax();
        }
    } while (now_ns() - start < spin_ns);
    return 0;
}

static void gate_wait(gate *g, unsigned seen, int64_t spin_ns) {
    if (spin_until_changed(g, seen, spin_ns)) return;
    pthread_mutex_lock(&g->mutex);
    /* Announced before the value is read again, and gate_bump reads it after writing the value:
     * one of the two sides always sees the other. */
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->value) == seen) pthread_cond_wait(&g->changed, &g->mutex);
    atomic_fetch_sub(&g->sleepers, 1);
    pthread_mutex_unlock(&g->mutex);
}

static void gate_bump(gate *g) {
    atomic_fetch_add(&g->value, 1);
    if (atomic_load(&g->sleepers) == 0) return;
    pthread_mutex_lock(&g->mutex);
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mutex);
}

/* Results may not depend on the rounding and denormal modes that some library left behind on the
 * calling thread, so every worker computes in the default mode. */
static unsigned float_mode_default(void) {
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(0x1F80);
    return before;
#else
    return 0;
#endif
}

static void float_mode_restore(unsigned before) {
#if defined(__x86_64__)
    _mm_setcsr(before);
#else
    (void)before;
#endif
}

#if defined(__linux__)
static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}
#else
static void pin(int core) { (void)core; }
#endif

static void *thread_main(void *arg) {
    seat *s = arg;
    sb_pool *pool = s->pool;
    if (pool->cores) pin(pool->cores[s->worker]);
    float_mode_default();
    for (unsigned seen = 0;; seen++) {
        gate_wait(&pool->job, seen, pool->spin_ns);
        if (pool->stopping) return NULL;
        pool->task(pool->arg, pool, s->worker);
        sb_pool_barrier(pool);
    }
}

static int allocate(sb_pool *pool, int workers, const int *cores) {
    pool->threads = calloc((size_t)workers, sizeof(*pool->threads));
    pool->seats = calloc((size_t)workers, sizeof(*pool->seats));
    pool->scratches = calloc((size_t)workers + 1, sizeof(*pool->scratches));
    if (!pool->threads || !pool->seats || !pool->scratches) return 0;
    if (!cores) return 1;
    pool->cores = calloc((size_t)workers, sizeof(*pool->cores));
    if (!pool->cores) return 0;
    for (int i = 0; i < workers; i++) pool->cores[i] = cores[i];
    return 1;
}

sb_pool *sb_pool_new(int workers, const int *cores, int spin_us) {
    sb_pool *pool = NULL;
    if (posix_memalign((void **)&pool, 64, sizeof(*pool))) return NULL;
    *pool = (sb_pool){.workers = workers, .spin_ns = (int64_t)spin_us * 1000};
    pthread_mutex_init(&pool->callers, NULL);
    gate_init(&pool->job);
    gate_init(&pool->phase);
    if (!allocate(pool, workers, cores)) {
        sb_pool_free(pool);
        return NULL;
    }
    for (int i = 1; i < workers; i++) {
        pool->seats[i] = (seat){pool, i};
        if (pthread_create(&pool->threads[i], NULL, thread_main, &pool->seats[i])) {
            sb_pool_free(pool);
            return NULL;
        }
        pool->started = i;
    }
    return pool;
}

void sb_pool_free(sb_pool *pool) {
    pool->stopping = 1;
    gate_bump(&pool->job);
    for (int i = 1; i <= pool->started; i++) pthread_join(pool->threads[i], NULL);
    for (int i = 0; pool->scratches && i <= pool->workers; i++) free(pool->scratches[i].memory);
    gate_destroy(&pool->job);
    gate_destroy(&pool->phase);
    pthread_mutex_destroy(&pool->callers);
    free(pool->scratches);
    free(pool->seats);
    free(pool->threads);
    free(pool->cores);
    free(pool);
}

int sb_pool_workers(const sb_pool *pool) { return pool->workers; }

static void run_as_worker_0(sb_pool *pool, sb_task task, void *arg) {
    unsigned mode = float_mode_default();
    atomic_store(&pool->ticket, 0);
    pool->task = task;
    pool->arg = arg;
    if (pool->workers > 1) gate_bump(&pool->job);
    task(arg, pool, 0);
    sb_pool_barrier(pool);
    float_mode_restore(mode);
}

static int reserve(scratch *s, size_t bytes) {
    if (s->bytes >= bytes) return 1;
    free(s->memory);
    s->memory = NULL;
    s->bytes = posix_memalign(&s->memory, 64, bytes) ? 0 : bytes;
    return s->bytes >= bytes;
}

static int reserve_all(sb_pool *pool, sb_memory memory) {
    int enough = reserve(&pool->scratches[pool->workers], memory.shared);
    for (int i = 0; i < pool->workers; i++) enough &= reserve(&pool->scratches[i], memory.per_worker);
    return enough;
}

static void run_pinned(sb_pool *pool, sb_task task, void *arg) {
#if defined(__linux__)
    cpu_set_t before;
    int pinned = pool->cores && !pthread_getaffinity_np(pthread_self(), sizeof(before), &before);
    if (pinned) pin(pool->cores[0]);
    run_as_worker_0(pool, task, arg);
    if (pinned) pthread_setaffinity_np(pthread_self(), sizeof(before), &before);
#else
    run_as_worker_0(pool, task, arg);
#endif
}

int sb_pool_run(sb_pool *pool, sb_memory memory, sb_task task, void *arg) {
    pthread_mutex_lock(&pool->callers);
    int ready = reserve_all(pool, memory);
    if (ready) run_pinned(pool, task, arg);
    pthread_mutex_unlock(&pool->callers);
    return ready ? 0 : -1;
}

void sb_pool_barrier(sb_pool *pool) {
    unsigned seen = atomic_load(&pool->phase.value);
    if (atomic_fetch_add(&pool->arrived, 1) + 1 < pool->workers) {
        gate_wait(&pool->phase, seen, pool->spin_ns);
        return;
    }
    atomic_store(&pool->arrived, 0);
    atomic_store(&pool->ticket, 0);
    gate_bump(&pool->phase);
}

int64_t sb_pool_ticket(sb_pool *pool) {
    return atomic_fetch_add_explicit(&pool->ticket, 1, memory_order_relaxed);
}

void *sb_pool_scratch(sb_pool *pool, int worker) { return pool->scratches[worker].memory; }

void *sb_pool_shared(sb_pool *pool) { return pool->scratches[pool->workers].memory; }
