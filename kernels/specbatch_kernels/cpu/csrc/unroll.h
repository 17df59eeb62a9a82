/* Loops written out by the preprocessor.  Sums that should live in registers are arrays with constant
 * indices from the first pass of the compiler on; arrays indexed by loops that are unrolled later
 * tend to stay in memory.
 *
 *     SB_FOR(12, i, n, sum[i] = v8_zero();)
 *
 * is: for (i = 0; i < n; i++) with n <= 12 known once the function is inlined.
 */
#ifndef SB_UNROLL_H
#define SB_UNROLL_H

#define SB_FOR(limit, i, n, ...)                                                                                       \
    {                                                                                                                  \
        SB_FOR_##limit(i, n, __VA_ARGS__)                                                                              \
    }

#define SB_STEP(i, value, n, ...)                                                                                      \
    if ((value) < (n)) {                                                                                               \
        enum { i = (value) };                                                                                          \
        __VA_ARGS__                                                                                                    \
    }
#define SB_FOR_2(i, n, ...) SB_STEP(i, 0, n, __VA_ARGS__) SB_STEP(i, 1, n, __VA_ARGS__)
#define SB_FOR_3(i, n, ...) SB_FOR_2(i, n, __VA_ARGS__) SB_STEP(i, 2, n, __VA_ARGS__)
#define SB_FOR_4(i, n, ...) SB_FOR_3(i, n, __VA_ARGS__) SB_STEP(i, 3, n, __VA_ARGS__)
#define SB_FOR_6(i, n, ...)                                                                                            \
    SB_FOR_4(i, n, __VA_ARGS__) SB_STEP(i, 4, n, __VA_ARGS__) SB_STEP(i, 5, n, __VA_ARGS__)
#define SB_FOR_8(i, n, ...)                                                                                            \
    SB_FOR_6(i, n, __VA_ARGS__) SB_STEP(i, 6, n, __VA_ARGS__) SB_STEP(i, 7, n, __VA_ARGS__)
#define SB_FOR_12(i, n, ...)                                                                                           \
    SB_FOR_8(i, n, __VA_ARGS__) SB_STEP(i, 8, n, __VA_ARGS__) SB_STEP(i, 9, n, __VA_ARGS__)                            \
    SB_STEP(i, 10, n, __VA_ARGS__) SB_STEP(i, 11, n, __VA_ARGS__)
#define SB_FOR_16(i, n, ...)                                                                                           \
    SB_FOR_12(i, n, __VA_ARGS__) SB_STEP(i, 12, n, __VA_ARGS__) SB_STEP(i, 13, n, __VA_ARGS__)                         \
    SB_STEP(i, 14, n, __VA_ARGS__) SB_STEP(i, 15, n, __VA_ARGS__)
#define SB_FOR_24(i, n, ...)                                                                                           \
    SB_FOR_16(i, n, __VA_ARGS__) SB_STEP(i, 16, n, __VA_ARGS__) SB_STEP(i, 17, n, __VA_ARGS__)                         \
    SB_STEP(i, 18, n, __VA_ARGS__) SB_STEP(i, 19, n, __VA_ARGS__) SB_STEP(i, 20, n, __VA_ARGS__)                       \
    SB_STEP(i, 21, n, __VA_ARGS__) SB_STEP(i, 22, n, __VA_ARGS__) SB_STEP(i, 23, n, __VA_ARGS__)

#endif
