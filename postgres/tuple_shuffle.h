/*
 * tuple_shuffle.h: what the node and the packing of its rows share.
 */
#ifndef PENSTOCK_TUPLE_SHUFFLE_H
#define PENSTOCK_TUPLE_SHUFFLE_H

#include "penstock.h"

typedef struct Argument
{
	AttrNumber	column;			/* of the row from below; 0 for an expression */
	ExprState  *expression;
} Argument;

typedef struct TupleShuffle
{
	CustomScanState css;
	Options    *options;
	bool		sparse;
	bool		weighted;
	Argument	arguments[4];	/* indices, which dense rows have none of, and values; the label; the row's weight */
	MemoryContext buffers;
	Worker	   *worker;
	Window		windows[2];
	int			filling;
	bool		exhausted;
	uint32		width;			/* of dense rows */
	uint32		top;			/* one more than the largest index of sparse rows */
	int64		buffer_bytes;
	bool		settled;		/* sizes are no longer guesses */
	Size		row_words;		/* of the last row, with its place */
	uint64		skipped;
	uint64		seen;			/* rows of this pass so far, and the words they took */
	double		words;
	uint64		target;			/* pages of the pass after which a window ends, where rows are a table's */
	uint64		begun;			/* pages of the pass before the window */
	Window	   *full;			/* a window that waits until the next is half full, where rows are no table's */
	TupleTableSlot *left;		/* a row that is yet to be packed */
	bool		remains;		/* the last window is yet to be given */
	bool		keeping;		/* rows of this pass are sampled, those that are held out if there are any */
	Sample		sample;
	uint64		held_out;		/* rows whose keys are below it are held out */
	const uint64 *loaded;		/* pages of this pass so far; NULL where rows are no table's */
	int64		pages;
	uint32		parts;			/* blocks a page */
	double		page_words;		/* of a page's rows, by a sample */
	uint64		pass;
	uint64		window_count;
	uint32		smallest;		/* rows of a window, in all passes so far */
	uint32		largest;
	double		waited;			/* seconds that filling stood still as learning went on */
} TupleShuffle;

/* Packs the row in a slot into a window; false where it does not fit. A row with a null may be left out. */
extern bool pack_row(TupleShuffle *state, Window *window, TupleTableSlot *slot, ExprContext *econtext);
extern Size packed_bytes(TupleShuffle *state, TupleTableSlot *slot, ExprContext *econtext);
extern void carry_over(TupleShuffle *state, Window *window, Window *other);
extern void even_out(TupleShuffle *state, Window *window, Window *other);
NEVER_RETURNS extern void refuse_size(TupleShuffle *state);

/* Sizes of the buffer and of blocks, where they were left open: by pages, then by some rows, when these may be read. */
extern bool sizes_open(const TupleShuffle *state);
extern void sizes_guess(TupleShuffle *state, PlanState *child);
extern void sizes_settle(TupleShuffle *state, PlanState *child);

#endif							/* PENSTOCK_TUPLE_SHUFFLE_H */
