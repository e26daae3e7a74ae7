/* One pool of the caching allocator over the passes of a long decode; compiled where there is a C
 * compiler. It does what memcalc/allocator does where no stream uses what another has made, under
 * settings that neither limit splits, nor collect garbage, nor round to powers of two; tests hold
 * the one against the other. All sizes in bytes. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { EMPTIES = -3, BORN = 0, DIES, LEFT, RISE = 8, CALLED = 9 };
enum { SMALL_REQUEST = 1 << 20, MIN_OWN_SEGMENT = 10 << 20, SEGMENT_ROUNDING = 2 << 20 };
enum { MIN_BLOCK = 512, DEVICE_PAGE = 2 << 20, SMALL_SEGMENT = 2 << 20 };
enum { NOTHING = -2, SMALL = -1 };

typedef struct {
    int64_t address, size, requested;
    int64_t prev, next; /* neighbours in the segment; -1: none. A spare one's next is the next spare. */
    int64_t segment;    /* address of the expandable segment it is in */
    int64_t stream;
    int busy, mapped;
} Block;

typedef struct {
    int64_t stream, size, address, block;
} Free;

/* What the caller sets, and reads when passes have been played. */
typedef struct {
    int64_t large_segment, available, allowed; /* allowed: -1 is no limit */
    int64_t used, next_address, small_free;    /* small_free: whole free segments of small blocks */
    int64_t small_requested, small_rounded;    /* small blocks now */
    int64_t requested, bytes, reserved;        /* large blocks; all segments */
    int64_t peak_requested, peak_bytes, peak_reserved;
    int64_t highest, at_requested, at_bytes; /* large blocks when reserved was highest */
    int64_t retries, failed, failed_rounded;
    int64_t is_small;          /* which pool it is */
    int64_t expandable, total; /* whether segments are; bytes of the device */
} Figures;

typedef struct {
    Figures figures;
    Block *blocks;
    int64_t count, room, spare, last;
    Free *free;
    int64_t frees, free_room;
    int64_t *holes; /* blocks without memory behind them, by address */
    int64_t hole_count, hole_room;
} Pool;

/* A storage that lives: its block, or what it takes as a small one. */
typedef struct {
    int64_t block, requested, rounded;
} Held;

static int64_t new_block(Pool *p, int64_t stream, int64_t address, int64_t size) {
    int64_t at = p->spare;
    if (at >= 0) {
        p->spare = p->blocks[at].next;
    } else {
        if (p->count == p->room) {
            p->room = p->room ? 2 * p->room : 1024;
            p->blocks = realloc(p->blocks, p->room * sizeof(Block));
            if (!p->blocks) abort();
        }
        at = p->count++;
    }
    p->blocks[at] = (Block){address, size, 0, -1, -1, 0, stream, 0, 1};
    return at;
}

static void drop_block(Pool *p, int64_t at) {
    p->blocks[at].next = p->spare;
    p->spare = at;
}

static int is_before(const Free *f, int64_t stream, int64_t size, int64_t address) {
    if (f->stream != stream) return f->stream < stream;
    return f->size < size || (f->size == size && f->address < address);
}

/* Where the first free block of a stream is that is not before this size and address. */
static int64_t place(const Pool *p, int64_t stream, int64_t size, int64_t address) {
    int64_t low = 0, high = p->frees;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (is_before(&p->free[middle], stream, size, address)) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void put(Pool *p, int64_t block) {
    const Block *b = &p->blocks[block];
    if (p->frees == p->free_room) {
        p->free_room = p->free_room ? 2 * p->free_room : 1024;
        p->free = realloc(p->free, p->free_room * sizeof(Free));
        if (!p->free) abort();
    }
    int64_t at = place(p, b->stream, b->size, b->address);
    memmove(p->free + at + 1, p->free + at, (p->frees++ - at) * sizeof(Free));
    p->free[at] = (Free){b->stream, b->size, b->address, block};
}

static void take(Pool *p, int64_t at) {
    memmove(p->free + at, p->free + at + 1, (--p->frees - at) * sizeof(Free));
}

static void take_block(Pool *p, int64_t block) {
    const Block *b = &p->blocks[block];
    take(p, place(p, b->stream, b->size, b->address));
}

static int64_t up(int64_t size, int64_t step) { return (size + step - 1) & -step; }

static int64_t whole(int64_t size, int64_t granule) { return (size + granule - 1) / granule * granule; }

static int64_t granule(const Figures *f) { return f->is_small ? SMALL_SEGMENT : f->large_segment; }

static void put_hole(Pool *p, int64_t block) {
    if (p->hole_count == p->hole_room) {
        p->hole_room = p->hole_room ? 2 * p->hole_room : 64;
        p->holes = realloc(p->holes, p->hole_room * sizeof(int64_t));
        if (!p->holes) abort();
    }
    int64_t at = p->hole_count++;
    for (; at > 0 && p->blocks[p->holes[at - 1]].address > p->blocks[block].address; at--)
        p->holes[at] = p->holes[at - 1];
    p->holes[at] = block;
}

static void take_hole(Pool *p, int64_t block) {
    int64_t at = 0;
    while (p->holes[at] != block) at++;
    memmove(p->holes + at, p->holes + at + 1, (--p->hole_count - at) * sizeof(int64_t));
}

/* Let a block swallow a neighbour that is free and mapped alike. */
static void merge(Pool *p, int64_t block, int64_t neighbour) {
    if (neighbour < 0 || p->blocks[neighbour].busy) return;
    Block *b = &p->blocks[block], *n = &p->blocks[neighbour];
    if (n->mapped != b->mapped) return;
    if (n->mapped) take_block(p, neighbour);
    else take_hole(p, neighbour);
    if (neighbour == b->prev) {
        b->address = n->address;
        b->prev = n->prev;
        if (b->prev >= 0) p->blocks[b->prev].next = block;
    } else {
        b->next = n->next;
        if (b->next >= 0) p->blocks[b->next].prev = block;
    }
    b->size += n->size;
    drop_block(p, neighbour);
}

/* A piece of a block's segment, between two neighbours. */
static int64_t piece(Pool *p, int64_t of, int64_t address, int64_t size, int64_t prev, int64_t next) {
    int64_t at = new_block(p, p->blocks[of].stream, address, size);
    p->blocks[at].segment = p->blocks[of].segment;
    p->blocks[at].prev = prev;
    p->blocks[at].next = next;
    if (prev >= 0) p->blocks[prev].next = at;
    if (next >= 0) p->blocks[next].prev = at;
    return at;
}

/* Put memory behind the front of a hole, in whole granules; all of it or none. */
static int map(Pool *p, int64_t hole, int64_t size) {
    Figures *f = &p->figures;
    int64_t mapped = whole(size, granule(f));
    if (f->used + mapped > f->available) return 0;
    f->used += mapped;
    take_hole(p, hole);
    p->blocks[hole].mapped = 1;
    if (mapped < p->blocks[hole].size) {
        const Block *h = &p->blocks[hole];
        int64_t rest = piece(p, hole, h->address + mapped, h->size - mapped, hole, h->next);
        p->blocks[rest].mapped = 0;
        p->blocks[hole].size = mapped;
        put_hole(p, rest);
    }
    merge(p, hole, p->blocks[hole].prev);
    merge(p, hole, p->blocks[hole].next);
    put(p, hole);
    f->reserved += mapped;
    if (f->reserved > f->peak_reserved) f->peak_reserved = f->reserved;
    return 1;
}

/* Give back the whole granules inside a free block; the rest of it stays free. */
static void unmap(Pool *p, int64_t block) {
    Figures *f = &p->figures;
    const Block b = p->blocks[block];
    int64_t step = granule(f), offset = b.address - b.segment;
    int64_t start = b.segment + whole(offset, step);
    int64_t size = (offset + b.size) / step * step - (start - b.segment);
    if (size <= 0) return;
    take_block(p, block);
    int64_t before = start - b.address, after = b.address + b.size - (start + size);
    if (before) put(p, piece(p, block, b.address, before, b.prev, block));
    if (after) put(p, piece(p, block, start + size, after, block, b.next));
    p->blocks[block].address = start;
    p->blocks[block].size = size;
    p->blocks[block].mapped = 0;
    merge(p, block, p->blocks[block].prev);
    merge(p, block, p->blocks[block].next);
    f->used -= size;
    f->reserved -= size;
    if (p->blocks[block].prev >= 0 || p->blocks[block].next >= 0) put_hole(p, block);
    else drop_block(p, block);
}

/* The first block of free ones in a row, mapped or not, that together are large enough. */
static int64_t find_room(Pool *p, int64_t stream, int64_t rounded) {
    Figures *f = &p->figures;
    for (int64_t at = 0; at < p->hole_count; at++) {
        int64_t first = p->holes[at], before = p->blocks[first].prev, room = 0;
        if (p->blocks[first].stream != stream) continue;
        if (before >= 0 && !p->blocks[before].busy) first = before;
        for (int64_t b = first; b >= 0 && !p->blocks[b].busy && room < rounded; b = p->blocks[b].next)
            room += p->blocks[b].size;
        if (room >= rounded) return first;
    }
    int64_t size = whole(f->total + f->total / 8, granule(f));
    int64_t segment = new_block(p, stream, f->next_address, size);
    f->next_address += up(size, DEVICE_PAGE);
    p->blocks[segment].segment = p->blocks[segment].address;
    p->blocks[segment].mapped = 0;
    put_hole(p, segment);
    return segment;
}

static int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }

/* Map memory at the lowest address where the request fits; -1: the device is full. */
static int64_t expanded(Pool *p, int64_t stream, int64_t rounded) {
    int64_t block = find_room(p, stream, rounded);
    if (!p->blocks[block].mapped && !map(p, block, least(p->blocks[block].size, rounded))) return -1;
    while (p->blocks[block].size < rounded) {
        int64_t hole = p->blocks[block].next, lacking = rounded - p->blocks[block].size;
        if (hole < 0 || !map(p, hole, least(lacking, p->blocks[hole].size))) return -1;
        block = hole; /* it swallowed the free block before it */
    }
    take_block(p, block);
    return block;
}

/* A block before a hole counts as large as it could grow. */
static int64_t could_grow_to(const Pool *p, int64_t block) {
    const Block *b = &p->blocks[block];
    int alone = b->next < 0 || p->blocks[b->next].mapped;
    return alone ? b->size : b->size + p->blocks[b->next].size;
}

static int64_t new_segment(Pool *p, int64_t stream, int64_t rounded) {
    Figures *f = &p->figures;
    int64_t size = f->is_small ? SMALL_SEGMENT : f->large_segment;
    if (rounded >= MIN_OWN_SEGMENT) size = up(rounded, SEGMENT_ROUNDING);
    if (f->allowed >= 0 && f->reserved + size > f->allowed) return -1;
    if (f->expandable) return expanded(p, stream, rounded);
    if (f->used + up(size, DEVICE_PAGE) > f->available) return -1;
    f->used += up(size, DEVICE_PAGE);
    f->reserved += size;
    if (f->reserved > f->peak_reserved) f->peak_reserved = f->reserved;
    int64_t block = new_block(p, stream, f->next_address, size);
    f->next_address += up(size, DEVICE_PAGE);
    return block;
}

static void unmap_all(Pool *p) {
    int64_t count = p->frees, *blocks = malloc((count ? count : 1) * sizeof(int64_t));
    if (!blocks) abort();
    for (int64_t at = 0; at < count; at++) blocks[at] = p->free[at].block;
    for (int64_t at = 0; at < count; at++) unmap(p, blocks[at]);
    free(blocks);
}

static void release_cached(Pool *p) {
    Figures *f = &p->figures;
    int64_t kept = 0;
    if (f->expandable) {
        unmap_all(p);
        f->used -= f->small_free;
        f->reserved -= f->small_free;
        f->small_free = 0;
        return;
    }
    for (int64_t at = 0; at < p->frees; at++) {
        const Block *b = &p->blocks[p->free[at].block];
        if (b->prev >= 0 || b->next >= 0) {
            p->free[kept++] = p->free[at];
            continue;
        }
        f->used -= up(b->size, DEVICE_PAGE);
        f->reserved -= b->size;
        drop_block(p, p->free[at].block);
    }
    p->frees = kept;
    f->used -= f->small_free;
    f->reserved -= f->small_free;
    f->small_free = 0;
}

/* The block that serves a request; -1: there is no room. */
static int64_t allocate(Pool *p, int64_t stream, int64_t size) {
    Figures *f = &p->figures;
    int64_t rounded = up(size, MIN_BLOCK), at = place(p, stream, rounded, 0), block;
    if (at < p->frees && p->free[at].stream == stream) {
        while (f->expandable && at + 1 < p->frees && p->free[at + 1].stream == stream &&
               could_grow_to(p, p->free[at + 1].block) < could_grow_to(p, p->free[at].block))
            at++;
        block = p->free[at].block;
        take(p, at);
    } else {
        block = new_segment(p, stream, rounded);
        if (block < 0) {
            release_cached(p);
            f->retries++;
            block = new_segment(p, stream, rounded);
        }
        if (block < 0) {
            f->failed = size;
            f->failed_rounded = rounded;
            return -1;
        }
    }
    int fine = f->is_small || f->expandable;
    if (p->blocks[block].size - rounded >= (fine ? MIN_BLOCK : SMALL_REQUEST + 1)) {
        int64_t rest = block, before = p->blocks[rest].prev;
        block = new_block(p, stream, p->blocks[rest].address, rounded);
        Block *b = &p->blocks[block], *r = &p->blocks[rest];
        b->prev = before;
        b->next = rest;
        b->segment = r->segment;
        if (before >= 0) p->blocks[before].next = block;
        r->prev = block;
        r->address += rounded;
        r->size -= rounded;
        put(p, rest);
    }
    Block *b = &p->blocks[block];
    b->busy = 1;
    b->requested = size;
    f->requested += size;
    f->bytes += b->size;
    if (f->reserved > f->highest) {
        f->highest = f->reserved;
        f->at_requested = f->requested;
        f->at_bytes = f->bytes;
    }
    return block;
}

static void release(Pool *p, int64_t block) {
    Block *b = &p->blocks[block];
    p->figures.requested -= b->requested;
    p->figures.bytes -= b->size;
    b->busy = 0;
    merge(p, block, b->prev);
    merge(p, block, b->next);
    put(p, block);
}

static int born(Pool *p, Held *held, int64_t stream, int64_t size) {
    if (size > SMALL_REQUEST && p->figures.is_small) {
        held->block = NOTHING; /* of the other pool */
        return 1;
    }
    if (size > SMALL_REQUEST || p->figures.is_small) {
        held->block = allocate(p, stream, size);
        return held->block >= 0;
    }
    *held = (Held){SMALL, size, up(size, MIN_BLOCK)};
    p->figures.small_requested += held->requested;
    p->figures.small_rounded += held->rounded;
    return 1;
}

static void end(Pool *p, Held *held) {
    if (held->block >= 0) {
        release(p, held->block);
    } else if (held->block == SMALL) {
        p->figures.small_requested -= held->requested;
        p->figures.small_rounded -= held->rounded;
    }
    held->block = NOTHING;
}

static void note(Figures *f, int64_t requested, int64_t rounded) {
    requested += f->small_requested + f->requested;
    rounded += f->small_rounded + f->bytes;
    if (requested > f->peak_requested) f->peak_requested = requested;
    if (rounded > f->peak_bytes) f->peak_bytes = rounded;
}

Pool *memcalc_open(const Figures *figures) {
    Pool *p = calloc(1, sizeof(Pool));
    if (!p) return NULL;
    p->figures = *figures;
    p->spare = p->last = -1;
    return p;
}

/* A block of a segment, from its begin on: the first one has no block before it.
 * segment: address of the expandable one that it is in. */
int64_t memcalc_block(Pool *p, int64_t stream, int64_t address, int64_t size, int64_t requested,
                      int64_t segment, int first, int mapped) {
    int64_t block = new_block(p, stream, address, size);
    p->blocks[block].segment = segment;
    p->blocks[block].mapped = mapped;
    if (!first) {
        p->blocks[block].prev = p->last;
        p->blocks[p->last].next = block;
    }
    p->last = block;
    p->blocks[block].busy = requested > 0;
    p->blocks[block].requested = requested;
    if (!mapped) put_hole(p, block);
    else if (!requested) put(p, block);
    return block;
}

/* Plays passes; returns how many were played to their end.
 *
 * plan: operations of five numbers, of which the last is a stream. left: what passes before have
 * left, by slot; afterwards what there is then. later: the slot of what a pass neither makes nor
 * frees, where a later one does; else -1. words: what kernels take, so many in each pass. since:
 * passes since the one whose sizes are written in the plan. */
int64_t memcalc_play(Pool *p, const int64_t *plan, int64_t length, Held *left,
                     const int64_t *later, int64_t slots, const int64_t *words, int64_t width,
                     int64_t since, int64_t passes) {
    Held *made = malloc((slots ? slots : 1) * sizeof(Held));
    int64_t pass = 0;
    if (!made) abort();
    for (; pass < passes; pass++, since++, words += width) {
        for (int64_t slot = 0; slot < slots; slot++) made[slot].block = NOTHING;
        for (const int64_t *op = plan; op < plan + 5 * length; op += 5) {
            switch (op[0]) {
            case RISE: note(&p->figures, op[1], op[2]); break;
            case BORN:
                if (!born(p, &made[op[1]], op[4], op[3] + op[2] * since)) goto done;
                break;
            case CALLED:
                if (!born(p, &made[op[1]], op[4], words[op[2]])) goto done;
                break;
            case DIES: end(p, &made[op[1]]); break;
            case EMPTIES: release_cached(p); break;
            default: end(p, &left[op[1]]);
            }
        }
        for (int64_t slot = 0; slot < slots; slot++) {
            if (left[slot].block == NOTHING) continue;
            int64_t to = later[slot];
            /* Where passes between were left out, what none of these frees is gone as well. */
            if (p->figures.is_small && (to < 0 || made[to].block != NOTHING))
                end(p, to < 0 ? &left[slot] : &made[to]);
            if (to >= 0) made[to] = left[slot];
        }
        memcpy(left, made, slots * sizeof(Held));
    }
done:
    free(made);
    return pass;
}

void memcalc_end(Pool *p, int64_t block) { release(p, block); }

void memcalc_read(const Pool *p, Figures *figures) { *figures = p->figures; }

void memcalc_close(Pool *p) {
    free(p->blocks);
    free(p->free);
    free(p->holes);
    free(p);
}
