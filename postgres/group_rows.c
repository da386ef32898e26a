/*
 * group_rows.c: keeps the rows of a group while it is read, and gives them out as often as they are needed.
 *
 * A group that is larger than the buffer goes to a temporary file, as the rows of a sort do, and comes back in blocks.
 */
#include "postgres.h"

#include "commands/tablespace.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "group_rows.h"

#define FIRST_ROWS 64

GroupRows *
group_rows_make(MemoryContext context, uint32 width, int64 buffer_bytes)
{
	GroupRows  *rows = MemoryContextAllocZero(context, sizeof(GroupRows));

	rows->context = context;
	rows->width = width;
	rows->row_words = 2 + (Size) width;
	rows->most = Min(Max(buffer_bytes / 2 / (rows->row_words * sizeof(float)), 1), PG_UINT32_MAX / rows->row_words);
	rows->room = Min(FIRST_ROWS, rows->most);
	rows->words = MemoryContextAllocHuge(context, rows->room * rows->row_words * sizeof(float));
	return rows;
}

static void
write_block(GroupRows *rows)
{
	if (rows->file == NULL)
	{
		MemoryContext before = MemoryContextSwitchTo(rows->context);

		PrepareTempTablespaces();
		rows->file = BufFileCreateTemp(false);
		MemoryContextSwitchTo(before);
	}
	BufFileWrite(rows->file, rows->words, rows->held * rows->row_words * sizeof(float));
	rows->held = 0;
}

void
group_rows_add(GroupRows *rows, float label, const float *values, uint32 lot)
{
	float	   *row;

	if (rows->held == rows->most)
		write_block(rows);
	if (rows->held == rows->room)
	{
		rows->room = Min((Size) rows->room * 2, rows->most);
		rows->words = repalloc_huge(rows->words, rows->room * rows->row_words * sizeof(float));
	}
	row = rows->words + rows->held++ * rows->row_words;
	row[0] = label;
	memcpy(row + 1, values, rows->width * sizeof(float));
	memcpy(row + 1 + rows->width, &lot, sizeof(lot));
	rows->rows++;
}

/* Closes the file; what is in memory goes with its context. */
void
group_rows_free(GroupRows *rows)
{
	if (rows->file)
		BufFileClose(rows->file);
	rows->file = NULL;
}

static void
close_rows(GroupRows *rows)
{
	Size		bytes = rows->room * rows->row_words * sizeof(float);

	rows->closed = true;
	rows->order = MemoryContextAllocHuge(rows->context, rows->room * sizeof(uint32));
	if (rows->file)
		write_block(rows);
	else
		rows->scaled = MemoryContextAllocHuge(rows->context, bytes);
}

/* Brings rows of some memory to scale. */
static void
scale_rows(const GroupRows *rows, const Worker *worker, const float *from, float *to, uint32 count)
{
	for (uint32 i = 0; i < count; i++, from += rows->row_words, to += rows->row_words)
	{
		to[0] = from[0];
		for (uint32 j = 0; j < rows->width; j++)
			to[1 + j] = (from[1 + j] - worker->center[j]) * worker->factor[j];
		memmove(to + 1 + rows->width, from + 1 + rows->width, sizeof(uint32));
	}
}

void
group_rows_scale(GroupRows *rows, const Worker *worker)
{
	if (!rows->closed)
		close_rows(rows);
	rows->scale = worker && worker->factor ? worker : NULL;
	if (rows->scale && rows->file == NULL)
		scale_rows(rows, worker, rows->words, rows->scaled, rows->held);
}

/* Reads a block from the file. */
static void
read_block(GroupRows *rows, uint64 first, uint32 count)
{
	Size		bytes = count * rows->row_words * sizeof(float);

	if (first == 0 && BufFileSeek(rows->file, 0, 0, SEEK_SET) != 0)
		ereport(ERROR, (errcode_for_file_access(), errmsg("could not go back to the begin of a temporary file")));
	if (BufFileRead(rows->file, rows->words, bytes) != bytes)
		ereport(ERROR, (errcode_for_file_access(), errmsg("could not read the rows of a group from a temporary file")));
	if (rows->scale)
		scale_rows(rows, rows->scale, rows->words, rows->words, count);
}

/* What a row is for, by its lot. */
static inline RowUse
use_of(const Split *split, const GroupRows *rows, const float *row)
{
	uint32		drawn;
	double		lot;

	memcpy(&drawn, row + 1 + rows->width, sizeof(drawn));
	lot = drawn / 4294967296.0;
	return lot < split->held_out ? USE_HELD_OUT : lot < split->held_out + split->selection ? USE_SELECTION : USE_TRAINING;
}

bool
group_rows_block(GroupRows *rows, uint32 number, RowUse use, const Split *split, Block *block)
{
	uint64		first = (uint64) number * rows->most;
	uint32		count = first < rows->rows ? Min(rows->rows - first, rows->most) : 0;

	CHECK_FOR_INTERRUPTS();
	if (count == 0)
		return false;
	if (!rows->closed)
		close_rows(rows);
	if (rows->file)
		read_block(rows, first, count);
	block->words = rows->scale && rows->file == NULL ? rows->scaled : rows->words;
	block->order = rows->order;
	block->count = 0;
	for (uint32 i = 0; i < count; i++)
		if (use == USE_ALL || use_of(split, rows, block->words + i * rows->row_words) == use)
			rows->order[block->count++] = (uint32) (i * rows->row_words);
	return true;
}
