/* N-grams as searches ask for them: the arrays of oaxe/search/ngram_table.py. */
#ifndef OAXE_NGRAMS_H
#define OAXE_NGRAMS_H

#include <stdint.h>

enum { NONE = -1 };

typedef struct { /* the n-grams of one order, sorted by their contexts and then by their words */
    const int32_t *words;
    const int64_t *first;      /* those of context c begin at first[c] and end before first[c + 1] */
    const float *log_probs, *backoffs;
} Order;

typedef struct { /* a context is n_states numbers: of the n-gram of the last n words, from n = 1 */
    const Order *orders;
    int64_t n_orders, n_states;
    double weight; /* of a log-probability in a score */
} NGrams;

/* Of the addresses of a table, which has no orders if there is no language model. */
static NGrams ngrams_at(unsigned long long orders, int64_t n_orders, double weight) {
    const NGrams ngrams = {(const Order *)(uintptr_t)orders, n_orders,
                           n_orders > 1 ? n_orders - 1 : 0, weight};
    return ngrams;
}

static int64_t find(const Order *order, int64_t context, int32_t word) {
    if (context == NONE) return NONE;
    int64_t low = order->first[context], high = order->first[context + 1];
    const int64_t end = high;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (order->words[middle] < word) low = middle + 1;
        else high = middle;
    }
    return low < end && order->words[low] == word ? low : NONE;
}

/* What a word adds to a score.
 *
 * context: of what stands before it; NULL if nothing does. after: that of what follows, or NULL. */
static double fluency(const NGrams *ngrams, const int64_t *context, int32_t word, int64_t *after) {
    if (!ngrams->n_orders) return 0.0;
    double found = ngrams->orders[0].log_probs[word];
    if (after && ngrams->n_states) after[0] = word;
    for (int64_t n = 1; n < ngrams->n_orders; n++) {
        const int64_t before = context ? context[n - 1] : NONE;
        const int64_t at = find(&ngrams->orders[n], before, word);
        if (at != NONE) found = ngrams->orders[n].log_probs[at];
        else if (before != NONE) found += ngrams->orders[n - 1].backoffs[before];
        if (after && n < ngrams->n_states) after[n] = at;
    }
    return ngrams->weight * found;
}

#endif
