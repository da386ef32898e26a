/*
 * sizes.c: how large the buffer and the blocks are, where that was left open.
 *
 * A buffer holds rows as float32, while a table may hold them compressed or apart from its pages. What counts is how many
 * blocks meet in a window once their rows are unpacked, so a few pages are looked at first.
 */
#include "postgres.h"

#include "tuple_shuffle.h"

#define MEETING 64				/* blocks in a window */
#define FEW 16					/* blocks in a window that are too few to have them larger for the disk's sake */
#define TOO_FEW 4				/* blocks in a window of which the user is told */
#define HANDY 8					/* pages that a disk should be asked for at once */
#define LARGEST ((10 << 20) / BLCKSZ)	/* pages of a block */
#define APART (8 * BLCKSZ)		/* bytes of a page's rows, unpacked, from where on the page itself is cheap to read again */
#define MOST_PARTS 64			/* blocks a page */

typedef struct PageBytes
{
	TupleShuffle *state;
	double		bytes;
} PageBytes;

/* Whether a size was left open, or is a share. */
bool
sizes_open(const TupleShuffle *state)
{
	return state->options->buffer_size == 0 || state->options->block_size == 0;
}

/* Settles sizes for a table whose rows take so many bytes a page when unpacked. */
static void
settle(TupleShuffle *state, PlanState *child, double page_bytes)
{
	const Options *options = state->options;
	double		table = state->pages * Max(page_bytes, BLCKSZ),
				window,
				pages;			/* of a block; where rows are stored apart it may be a part of one */

	if (options->buffer_size)
		state->buffer_bytes = options->buffer_size;
	else if (options->buffer_share > 0)
		state->buffer_bytes = Min(Max(table * options->buffer_share, 65536.0), 16.0 * (1 << 30));
	else
		state->buffer_bytes = Min(Max(table / 10, 8.0 * (1 << 20)), 512.0 * (1 << 20));
	window = state->buffer_bytes / 2.0;
	if (options->block_size)
		pages = Max(options->block_size / BLCKSZ, 1);
	else
	{
		pages = Min(window / MEETING / page_bytes, LARGEST);
		if (page_bytes < APART)
			pages = Max(pages, Max(Min(HANDY, window / FEW / page_bytes), 1));
	}
	state->parts = 1;
	if (options->shuffle != SHUFFLE_NONE && state->pages * MOST_PARTS < PG_UINT32_MAX)
		state->parts = Max(Min(1 / pages, MOST_PARTS), 1);
	state->page_words = page_bytes / sizeof(float);
	block_shuffle_settle(child, options, Max(pages, 1), state->parts);
	pages = Max(pages, 1.0 / state->parts);
	if (state->settled && options->shuffle == SHUFFLE_CORGIPILE && state->pages * page_bytes > state->buffer_bytes &&
		window < TOO_FEW * page_bytes * pages)
		ereport(WARNING,
				(errmsg("half a buffer of " INT64_FORMAT " kB holds fewer than %d blocks, so rows are hardly shuffled",
						state->buffer_bytes / 1024, TOO_FEW),
				 errhint("Give a larger buffer_size%s.", options->block_size ? " or a smaller block_size" : "")));
}

void
sizes_guess(TupleShuffle *state, PlanState *child)
{
	state->loaded = block_shuffle_loaded(child);
	if (block_shuffle_pages(child, &state->pages))
		settle(state, child, BLCKSZ);
	else if (state->options->buffer_share > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("buffer_size is a share of a table, and these rows are no table's"),
				 errhint("Give it in bytes, such as \"64MB\".")));
	else
		state->buffer_bytes = state->options->buffer_size ? state->options->buffer_size : 64 << 20;
}

static void
visit(void *argument, TupleTableSlot *slot)
{
	PageBytes  *sample = argument;
	ExprContext *econtext = sample->state->css.ss.ps.ps_ExprContext;

	ResetExprContext(econtext);
	econtext->ecxt_scantuple = slot;
	sample->bytes += packed_bytes(sample->state, slot, econtext);
}

/* Before the first row is read. */
void
sizes_settle(TupleShuffle *state, PlanState *child)
{
	PageBytes	sample = {state, 0};
	int64		sampled;

	state->settled = true;
	if (state->loaded == NULL)
		return;
	sampled = block_shuffle_sample(child, visit, &sample);
	settle(state, child, sampled && sample.bytes > 0 ? sample.bytes / sampled : BLCKSZ);
}
