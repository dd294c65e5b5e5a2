/* The output layer of a model in int8: of each position the n words of the largest logits, and the sum
 * of exp(logit - peak) over all words. One word may stand apart: it has its part in the sum, and its
 * logit is told, but it is none of the n. Logits are not stored: those of a panel of words are in the
 * cache for as long as they are needed.
 *
 * States are unsigned, 7 bits wide and MIDDLE above the number they stand for; weights are signed, 8
 * bits wide. Two products fit into 16 bits, so that all of these paths compute the same whole numbers:
 *   vnni   AVX-512 with VNNI: four products and their sum at once
 *   avx2   products in pairs
 *   dot    the first on ARM, with its products of four
 *   neon   the second on ARM
 * Which of them the processor has is asked at run time. Others have none: numpy is as good as plain C.
 *
 * Weights are packed: PANEL words are BLOCKS blocks of WORDS words; a block has, for each group of four
 * numbers, the four of each of its words. No threads: a caller gives each of its own some panels.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const uint8_t *states; /* (rows, 4 * groups); rows are a multiple of ROWS */
    const float *row_scale;
    const int8_t *packed;
    const float *word_scale; /* (vocab) */
    const int32_t *sums;     /* (vocab): of the weights of a word */
    const int64_t *never;
    int64_t rows, groups, vocab, n_never, n, apart; /* apart: -1 if no word stands apart */
    float *top;    /* (rows, n), the largest first */
    int64_t *word; /* (rows, n) */
    float *peak;   /* (rows): the largest logit, also of the word that stands apart */
    float *total;  /* (rows) */
    float *aside;  /* (rows): the logit of the word that stands apart */
} Task;

typedef void Run(const Task *t, int64_t first_panel, int64_t last_panel);

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__aarch64__))
#define INLINE static inline __attribute__((always_inline))

enum { WORDS = 16, BLOCKS = 4, PANEL = WORDS * BLOCKS, ROWS = 4, MIDDLE = 64 };
#define NEVER -1e30f /* the logit of a word that may not be predicted */

typedef int32_t Products[ROWS][PANEL];

/* The sum of exp(x - top) over a panel, each within 1e-7; no x is above top. Every loop is one that
 * compilers vectorise. */
INLINE float sum_of_exp(const float *x, float top) {
    float value[PANEL], power[PANEL];
    int32_t whole[PANEL];
    for (int j = 0; j < PANEL; j++) {
        const float below = x[j] - top;
        value[j] = below < -87.0f ? -87.0f : below;
        whole[j] = (int32_t)(value[j] * 1.44269504f - 0.5f);
    }
    for (int j = 0; j < PANEL; j++) {
        const float n = (float)whole[j];
        const float f = (value[j] - n * 0.693145752f) - n * 1.42860677e-6f;
        float p = 1.98756915e-4f;
        p = p * f + 1.39819995e-3f;
        p = p * f + 8.33345191e-3f;
        p = p * f + 4.16657959e-2f;
        p = p * f + 1.66666655e-1f;
        p = p * f + 5.00000012e-1f;
        value[j] = p * f * f + f + 1.0f;
        whole[j] = (whole[j] + 127) << 23; /* the bits of 2 to that power */
    }
    memcpy(power, whole, sizeof power);
    for (int j = 0; j < PANEL; j++) value[j] *= power[j];
    for (int j = 0; j < PANEL / 2; j++) value[j] += value[j + PANEL / 2];
    float sum = 0;
    for (int j = 0; j < PANEL / 2; j++) sum += value[j];
    return sum;
}

/* Those of a panel that are among the n largest of their row; of equal ones the first. */
INLINE void keep_largest(const Task *t, int64_t row, int64_t first, const float *logit) {
    float *top = t->top + row * t->n;
    int64_t *word = t->word + row * t->n;
    for (int b = 0; b < PANEL; b += WORDS) {
        float best = logit[b];
        for (int j = b; j < b + WORDS; j++) best = logit[j] > best ? logit[j] : best;
        if (best <= top[t->n - 1]) continue;
        for (int j = b; j < b + WORDS; j++) {
            if (logit[j] <= top[t->n - 1]) continue;
            int64_t at = t->n - 1;
            for (; at > 0 && top[at - 1] < logit[j]; at--) {
                top[at] = top[at - 1];
                word[at] = word[at - 1];
            }
            top[at] = logit[j];
            word[at] = first + j;
        }
    }
}

/* The logits of a row take part in its largest ones and its sum. */
INLINE void add_panel(const Task *t, int64_t row, int64_t first, const int32_t *products,
                      const float *scale, const int32_t *middle, const int32_t *excluded) {
    float logit[PANEL];
    const float row_scale = t->row_scale[row];
    for (int j = 0; j < PANEL; j++) {
        const float x = (float)(products[j] - middle[j]) * scale[j] * row_scale;
        logit[j] = excluded[j] ? NEVER : x;
    }
    float best = logit[0];
    for (int j = 0; j < PANEL; j++) best = logit[j] > best ? logit[j] : best;
    if (best > t->peak[row]) {
        t->total[row] *= expf(t->peak[row] - best);
        t->peak[row] = best;
    }
    t->total[row] += sum_of_exp(logit, t->peak[row]);
    if (t->apart >= first && t->apart < first + PANEL) {
        t->aside[row] = logit[t->apart - first];
        logit[t->apart - first] = 2 * NEVER;
    }
    keep_largest(t, row, first, logit);
}

typedef void Multiply(const uint8_t *states, const int8_t *panel, int64_t groups, Products out);

INLINE void run(const Task *t, int64_t first_panel, int64_t last_panel, Multiply *multiply) {
    for (int64_t p = first_panel; p < last_panel; p++) {
        float scale[PANEL] = {0};
        int32_t middle[PANEL] = {0};
        int32_t excluded[PANEL];
        const int64_t first = p * PANEL;
        for (int j = 0; j < PANEL; j++) {
            excluded[j] = first + j >= t->vocab;
            if (excluded[j]) continue;
            scale[j] = t->word_scale[first + j];
            middle[j] = MIDDLE * t->sums[first + j];
        }
        for (int64_t n = 0; n < t->n_never; n++)
            if (t->never[n] >= first && t->never[n] < first + PANEL) excluded[t->never[n] - first] = 1;
        const int8_t *panel = t->packed + first * t->groups * 4;
        for (int64_t row = 0; row < t->rows; row += ROWS) {
            Products products;
            multiply(t->states + row * t->groups * 4, panel, t->groups, products);
            for (int r = 0; r < ROWS; r++)
                add_panel(t, row + r, first, products[r], scale, middle, excluded);
        }
    }
}

/* Four numbers of a state, for each of the words of a vector. */
INLINE int32_t four(const uint8_t *states, int r, int64_t groups, int64_t g) {
    int32_t numbers;
    memcpy(&numbers, states + (r * groups + g) * 4, 4);
    return numbers;
}

#if defined(__x86_64__)
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2,fma")))
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")))

AVX2 static inline void multiply_avx2(const uint8_t *states, const int8_t *panel, int64_t groups,
                                      Products out) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int b = 0; b < BLOCKS; b++) {
        __m256i sum[ROWS][2];
        for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
        for (int64_t g = 0; g < groups; g++) {
            const __m256i *w = (const __m256i *)(panel + (b * groups + g) * WORDS * 4);
            const __m256i low = _mm256_loadu_si256(w), high = _mm256_loadu_si256(w + 1);
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) {
                const __m256i x = _mm256_set1_epi32(four(states, r, groups, g));
                const __m256i pairs[2] = {_mm256_maddubs_epi16(x, low),
                                          _mm256_maddubs_epi16(x, high)};
                sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(pairs[0], ones));
                sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(pairs[1], ones));
            }
        }
        for (int r = 0; r < ROWS; r++) {
            _mm256_storeu_si256((__m256i *)(out[r] + b * WORDS), sum[r][0]);
            _mm256_storeu_si256((__m256i *)(out[r] + b * WORDS + 8), sum[r][1]);
        }
    }
}

AVX2 static void run_avx2(const Task *t, int64_t first, int64_t last) {
    run(t, first, last, multiply_avx2);
}

VNNI static inline void multiply_vnni(const uint8_t *states, const int8_t *panel, int64_t groups,
                                      Products out) {
    __m512i sum[ROWS][BLOCKS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * BLOCKS; i++) sum[i / BLOCKS][i % BLOCKS] = _mm512_setzero_si512();
    for (int64_t g = 0; g < groups; g++) {
        __m512i w[BLOCKS];
#pragma GCC unroll 4
        for (int b = 0; b < BLOCKS; b++)
            w[b] = _mm512_loadu_si512(panel + (b * groups + g) * WORDS * 4);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            const __m512i x = _mm512_set1_epi32(four(states, r, groups, g));
#pragma GCC unroll 4
            for (int b = 0; b < BLOCKS; b++) sum[r][b] = _mm512_dpbusd_epi32(sum[r][b], x, w[b]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * BLOCKS; i++)
        _mm512_storeu_si512(out[i / BLOCKS] + i % BLOCKS * WORDS, sum[i / BLOCKS][i % BLOCKS]);
}

VNNI static void run_vnni(const Task *t, int64_t first, int64_t last) {
    run(t, first, last, multiply_vnni);
}

/* By name, if the processor has it. */
static Run *find(const char *path) {
    __builtin_cpu_init();
    if (!strcmp(path, "vnni") && __builtin_cpu_supports("avx512vnni") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return run_vnni;
    if (!strcmp(path, "avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return run_avx2;
    return NULL;
}
#else /* ARM, where 7 bits are the same number with a sign or without */
#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#define HAS_DOT (getauxval(AT_HWCAP) >> 20 & 1) /* HWCAP_ASIMDDP */
#elif defined(__APPLE__)
#define HAS_DOT 1
#else
#define HAS_DOT 0
#endif
#if defined(__clang__)
#define DOT __attribute__((target("dotprod")))
#else
#define DOT __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
enum { PARTS = WORDS / 4 }; /* of a block, a vector each */

/* The sums of a block; ADD is one more product of four numbers with those of four words. */
#define MULTIPLY(ADD)                                                                           \
    for (int b = 0; b < BLOCKS; b++) {                                                          \
        int32x4_t sum[ROWS][PARTS];                                                             \
        for (int i = 0; i < ROWS * PARTS; i++) sum[i / PARTS][i % PARTS] = vdupq_n_s32(0);      \
        for (int64_t g = 0; g < groups; g++) {                                                  \
            int8x16_t w[PARTS];                                                                 \
            for (int i = 0; i < PARTS; i++)                                                     \
                w[i] = vld1q_s8(panel + ((b * groups + g) * PARTS + i) * 16);                   \
            for (int r = 0; r < ROWS; r++) {                                                    \
                const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(four(states, r, groups, g))); \
                for (int i = 0; i < PARTS; i++) sum[r][i] = ADD(sum[r][i], x, w[i]);            \
            }                                                                                   \
        }                                                                                       \
        for (int i = 0; i < ROWS * PARTS; i++)                                                  \
            vst1q_s32(out[i / PARTS] + b * WORDS + i % PARTS * 4, sum[i / PARTS][i % PARTS]);   \
    }

INLINE int32x4_t in_pairs(int32x4_t sum, int8x16_t x, int8x16_t w) {
    const int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(w)), high = vmull_high_s8(x, w);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
}

static inline void multiply_neon(const uint8_t *states, const int8_t *panel, int64_t groups,
                                 Products out) {
    MULTIPLY(in_pairs)
}

static void run_neon(const Task *t, int64_t first, int64_t last) {
    run(t, first, last, multiply_neon);
}

DOT static inline void multiply_dot(const uint8_t *states, const int8_t *panel, int64_t groups,
                                    Products out) {
    MULTIPLY(vdotq_s32)
}

DOT static void run_dot(const Task *t, int64_t first, int64_t last) {
    run(t, first, last, multiply_dot);
}

/* By name, if the processor has it. */
static Run *find(const char *path) {
    if (!strcmp(path, "dot") && HAS_DOT) return run_dot;
    return strcmp(path, "neon") ? NULL : run_neon;
}
#endif
#else
static Run *find(const char *path) {
    (void)path;
    return NULL;
}
#endif

/* paths(): names of those that the processor has, fastest first. */
static PyObject *paths(PyObject *self, PyObject *args) {
    static const char *const every[] = {"vnni", "avx2", "dot", "neon"};
    PyObject *found = PyList_New(0);
    (void)self;
    (void)args;
    for (int i = 0; found && i < 4; i++) {
        if (!find(every[i])) continue;
        PyObject *name = PyUnicode_FromString(every[i]);
        if (!name || PyList_Append(found, name)) Py_CLEAR(found);
        Py_XDECREF(name);
    }
    return found;
}

/* likeliest(path, states, row_scale, packed, word_scale, sums, never, top, word, peak, total, aside,
 *           rows, groups, vocab, n_never, n, apart, first_panel, last_panel): addresses of contiguous
 *           arrays, and numbers. */
static PyObject *likeliest(PyObject *self, PyObject *args) {
    unsigned long long a[11];
    Py_ssize_t n[8];
    const char *path;
    (void)self;
    if (!PyArg_ParseTuple(args, "sKKKKKKKKKKKnnnnnnnn", &path, &a[0], &a[1], &a[2], &a[3], &a[4], &a[5],
                          &a[6], &a[7], &a[8], &a[9], &a[10], &n[0], &n[1], &n[2], &n[3], &n[4], &n[5],
                          &n[6], &n[7]))
        return NULL;
    Run *chosen = find(path);
    if (!chosen) {
        PyErr_Format(PyExc_ValueError, "this processor has no path %s", path);
        return NULL;
    }
    const Task task = {
        (const uint8_t *)(uintptr_t)a[0], (const float *)(uintptr_t)a[1],
        (const int8_t *)(uintptr_t)a[2],  (const float *)(uintptr_t)a[3],
        (const int32_t *)(uintptr_t)a[4], (const int64_t *)(uintptr_t)a[5],
        n[0], n[1], n[2], n[3], n[4], n[5],
        (float *)(uintptr_t)a[6], (int64_t *)(uintptr_t)a[7], (float *)(uintptr_t)a[8],
        (float *)(uintptr_t)a[9], (float *)(uintptr_t)a[10],
    };
    Py_BEGIN_ALLOW_THREADS
    chosen(&task, n[6], n[7]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"paths", paths, METH_NOARGS, "paths() -> names of those that the processor has"},
    {"likeliest", likeliest, METH_VARARGS, "see oaxe.engine.output"},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_output", NULL, 0, methods,
                                    NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__output(void) { return PyModule_Create(&module); }
