/* Prefix beam search for CTC, a sentence after the other: the search of oaxe/search/ctc_beam.py.
 *
 * Prefixes are nodes of a tree, so that equal ones are the same node, and what a language model says
 * of a node is asked once. Log-probabilities of the model are at most 0: with a weight that is not
 * negative, it is asked only about extensions that could still be among the best.
 *
 * The compiler is told that no number is infinite: NEVER stands for log(0).
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_ngrams.h"

#define NEVER -1e30
#define IS_POSSIBLE(x) ((x) > NEVER / 2)
enum { ROOT = 0 };

typedef struct {
    int64_t parent, child, sibling; /* child: the newest */
    int64_t length, slot;           /* slot: where it is among the prefixes, or NONE */
    double fluency;                 /* what the language model adds to the score */
    int32_t word;
} Node;

typedef struct {
    int64_t node;
    double blank, word; /* log-probability of the prefix and a blank behind it, and without one */
    double score;
} Prefix;

typedef struct {
    NGrams ngrams;
    int64_t beam, n_words;
    double bonus;
    Node *nodes;
    int64_t *states; /* (nodes, n_states): contexts of what follows */
    int64_t n_nodes, room;
    Prefix *now, *next;
    int64_t n_now, n_next;
    uint8_t *joined; /* (beam, n_words): extensions that are prefixes already */
} Search;

static double log_add(double a, double b) {
    const double high = a > b ? a : b, low = a > b ? b : a;
    return high - low > 40.0 ? high : high + log1p(exp(low - high));
}

/* A new node, or NONE if there is no memory. */
static int64_t add_node(Search *s, int64_t parent, int32_t word) {
    if (s->n_nodes == s->room) {
        const int64_t room = s->room ? 2 * s->room : 1024;
        Node *nodes = realloc(s->nodes, room * sizeof *nodes);
        if (!nodes) return NONE;
        s->nodes = nodes;
        int64_t *states = realloc(s->states, (room * s->ngrams.n_states + 1) * sizeof *states);
        if (!states) return NONE;
        s->states = states;
        s->room = room;
    }
    const int64_t at = s->n_nodes++;
    Node node = {parent, NONE, NONE, 0, NONE, 0.0, word};
    if (parent != NONE) {
        Node *p = &s->nodes[parent];
        node.sibling = p->child;
        node.length = p->length + 1;
        p->child = at;
        const int64_t n_states = s->ngrams.n_states;
        node.fluency = p->fluency + fluency(&s->ngrams, s->states + parent * n_states, word,
                                            s->states + at * n_states);
    }
    s->nodes[at] = node;
    return at;
}

/* The node of a prefix with one more word. */
static int64_t extended(Search *s, int64_t parent, int32_t word) {
    for (int64_t at = s->nodes[parent].child; at != NONE; at = s->nodes[at].sibling)
        if (s->nodes[at].word == word) return at;
    return add_node(s, parent, word);
}

/* Whether a score would be among those of the next prefixes. */
static int is_enough(const Search *s, double score) {
    return s->n_next < s->beam || score > s->next[s->n_next - 1].score;
}

static void keep(Search *s, Prefix prefix) {
    const Node *node = &s->nodes[prefix.node];
    prefix.score = log_add(prefix.blank, prefix.word) + node->fluency + s->bonus * node->length;
    if (!is_enough(s, prefix.score)) return;
    int64_t at = s->n_next < s->beam ? s->n_next++ : s->n_next - 1;
    for (; at > 0 && s->next[at - 1].score < prefix.score; at--) s->next[at] = s->next[at - 1];
    s->next[at] = prefix;
}

/* One position: the best of the prefixes and their extensions. Returns 0, or -1 without memory. */
static int advance(Search *s, const int32_t *words, const float *log_probs, double blank) {
    s->n_next = 0;
    memset(s->joined, 0, s->n_now * s->n_words);
    for (int64_t i = 0; i < s->n_now; i++) { /* the same text: a blank, or its last word again */
        const Prefix *p = &s->now[i];
        const Node *node = &s->nodes[p->node];
        Prefix same = {p->node, log_add(p->blank, p->word) + blank, NEVER, 0.0};
        for (int64_t k = 0; k < s->n_words && p->node != ROOT; k++) {
            if (words[k] != node->word) continue;
            same.word = p->word + log_probs[k];
            const Node *parent = &s->nodes[node->parent];
            if (parent->slot != NONE) { /* an extension of another one, which is this text */
                const Prefix *q = &s->now[parent->slot];
                const int again = node->parent != ROOT && parent->word == words[k];
                const double before = again ? q->blank : log_add(q->blank, q->word);
                same.word = log_add(same.word, before + log_probs[k]);
                s->joined[parent->slot * s->n_words + k] = 1;
            }
        }
        if (IS_POSSIBLE(log_add(same.blank, same.word))) keep(s, same);
    }
    for (int64_t i = 0; i < s->n_now; i++) {
        const Prefix *p = &s->now[i];
        const double any = log_add(p->blank, p->word);
        for (int64_t k = 0; k < s->n_words; k++) {
            const Node node = s->nodes[p->node];
            /* A word that repeats the last one is a new one only behind a blank. */
            const int again = p->node != ROOT && node.word == words[k];
            const double total = (again ? p->blank : any) + log_probs[k];
            if (s->joined[i * s->n_words + k] || !IS_POSSIBLE(total)) continue;
            const double most = total + node.fluency + s->bonus * (node.length + 1);
            if (s->ngrams.weight >= 0 && !is_enough(s, most)) continue;
            const int64_t at = extended(s, p->node, words[k]);
            if (at == NONE) return -1;
            const Prefix longer = {at, NEVER, total, 0.0};
            keep(s, longer);
        }
    }
    for (int64_t i = 0; i < s->n_now; i++) s->nodes[s->now[i].node].slot = NONE;
    for (int64_t i = 0; i < s->n_next; i++) s->nodes[s->next[i].node].slot = i;
    Prefix *before = s->now;
    s->now = s->next;
    s->next = before;
    s->n_now = s->n_next;
    return 0;
}

/* What is found of one sentence, the best first. */
typedef struct {
    int32_t *tokens; /* (beam, longest) */
    int64_t *lengths;
    double *scores, *totals;
    int64_t longest;
} Found;

static void finish(Search *s, int64_t n_positions, int32_t eos, const Found *found) {
    for (int64_t i = 0; i < s->n_now; i++) {
        Prefix *p = &s->now[i];
        const Node *node = &s->nodes[p->node];
        double score = log_add(p->blank, p->word) + node->fluency + s->bonus * node->length;
        score += fluency(&s->ngrams, s->states + p->node * s->ngrams.n_states, eos, NULL);
        p->score = score / (double)n_positions;
    }
    for (int64_t i = 1; i < s->n_now; i++) { /* nearly sorted */
        const Prefix p = s->now[i];
        int64_t at = i;
        for (; at > 0 && s->now[at - 1].score < p.score; at--) s->now[at] = s->now[at - 1];
        s->now[at] = p;
    }
    for (int64_t i = 0; i < s->n_now; i++) {
        const Prefix *p = &s->now[i];
        found->scores[i] = p->score;
        found->totals[i] = log_add(p->blank, p->word);
        int64_t length = found->lengths[i] = s->nodes[p->node].length;
        for (int64_t at = p->node; length > 0; at = s->nodes[at].parent)
            found->tokens[i * found->longest + --length] = s->nodes[at].word;
    }
}

/* search(words, log_probs, blanks, ends, orders, tokens, lengths, scores, totals, n_found, sentences,
 *        n_words, n_orders, beam, longest, begin, end, weight, bonus): addresses of contiguous arrays,
 *        and numbers; see oaxe.search.ctc_beam_cpu. */
static PyObject *search(PyObject *self, PyObject *args) {
    unsigned long long a[10];
    Py_ssize_t n[7];
    double weight, bonus;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKKKKKKKKKnnnnnnndd", &a[0], &a[1], &a[2], &a[3], &a[4], &a[5], &a[6],
                          &a[7], &a[8], &a[9], &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &n[6],
                          &weight, &bonus))
        return NULL;
    const int32_t *words = (const int32_t *)(uintptr_t)a[0];
    const float *log_probs = (const float *)(uintptr_t)a[1], *blanks = (const float *)(uintptr_t)a[2];
    const int64_t *ends = (const int64_t *)(uintptr_t)a[3];
    int32_t *tokens = (int32_t *)(uintptr_t)a[5];
    int64_t *lengths = (int64_t *)(uintptr_t)a[6], *n_found = (int64_t *)(uintptr_t)a[9];
    double *scores = (double *)(uintptr_t)a[7], *totals = (double *)(uintptr_t)a[8];
    const int64_t n_words = n[1], beam = n[3], longest = n[4];
    Search s = {
        .ngrams = ngrams_at(a[4], n[2], weight), .beam = beam, .n_words = n_words, .bonus = bonus,
    };
    int failed;
    Py_BEGIN_ALLOW_THREADS
    s.now = malloc(beam * sizeof *s.now);
    s.next = malloc(beam * sizeof *s.next);
    s.joined = malloc(beam * n_words);
    failed = !s.now || !s.next || !s.joined;
    int64_t position = 0;
    for (int64_t i = 0; i < n[0] && !failed; i++) {
        s.n_nodes = 0;
        failed = add_node(&s, NONE, NONE) == NONE;
        if (failed) break;
        s.nodes[ROOT].slot = 0;
        fluency(&s.ngrams, NULL, (int32_t)n[5], s.states);
        s.n_now = 1;
        s.now[0] = (Prefix){ROOT, 0.0, NEVER, 0.0};
        const int64_t begin = position;
        for (; position < ends[i] && !failed; position++)
            failed = advance(&s, words + position * n_words, log_probs + position * n_words,
                             blanks[position]);
        n_found[i] = s.n_now;
        const Found found = {tokens + i * beam * longest, lengths + i * beam, scores + i * beam,
                             totals + i * beam, longest};
        if (!failed) finish(&s, ends[i] - begin, (int32_t)n[6], &found);
    }
    free(s.now);
    free(s.next);
    free(s.joined);
    free(s.nodes);
    free(s.states);
    Py_END_ALLOW_THREADS
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"search", search, METH_VARARGS, "see oaxe.search.ctc_beam_cpu"},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_ctc_beam", NULL, 0, methods,
                                    NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__ctc_beam(void) { return PyModule_Create(&module); }
