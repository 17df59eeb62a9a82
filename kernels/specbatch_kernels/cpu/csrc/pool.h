/* Fixed pool of threads that run one task together, with barriers inside the task.
 *
 * The caller of sb_pool_run is worker 0; a pool of n workers owns n - 1 threads.  Waiting threads
 * spin for some microseconds and then park on a condition variable: small phases follow each other
 * without a system call, and an idle pool costs nothing.
 */
#ifndef SB_POOL_H
#define SB_POOL_H

#include <stddef.h>
#include <stdint.h>

typedef struct sb_pool sb_pool;
/* Bytes of scratch memory that a task needs. */
typedef struct {
    size_t shared, per_worker;
} sb_memory;

typedef void (*sb_task)(void *arg, sb_pool *pool, int worker);

/* Starts the threads.  `cores` holds one CPU number per worker, or is NULL for no pinning.
 * Returns NULL when threads or memory run out. */
sb_pool *sb_pool_new(int workers, const int *cores, int spin_us);

/* Stops and joins the threads.  No task may be running. */
void sb_pool_free(sb_pool *pool);

int sb_pool_workers(const sb_pool *pool);

/* Runs `task` once on every worker and returns when all have finished.  Callers are serialised.
 * Returns 0, or -1 without running when the scratch memory cannot be had. */
int sb_pool_run(sb_pool *pool, sb_memory memory, sb_task task, void *arg);

/* Inside a task: waits for all workers, then starts the next phase with a fresh ticket counter. */
void sb_pool_barrier(sb_pool *pool);

/* Inside a task: next unclaimed work item of this phase, counted from 0. */
int64_t sb_pool_ticket(sb_pool *pool);

/* Inside a task: the worker's scratch memory and that of all, 64-byte aligned, contents arbitrary. */
void *sb_pool_scratch(sb_pool *pool, int worker);
void *sb_pool_shared(sb_pool *pool);

#endif
