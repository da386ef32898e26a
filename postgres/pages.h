/*
 * pages.h: reading a heap table by blocks, runs of neighbouring pages or, where rows are large and stored apart, parts of one.
 */
#ifndef PENSTOCK_PAGES_H
#define PENSTOCK_PAGES_H

#include "access/heapam.h"
#include "access/tableam.h"
#if PG_VERSION_NUM >= 170000
#include "storage/read_stream.h"
#endif

#include "penstock.h"

typedef struct Pages
{
	Relation	table;
	Snapshot	snapshot;
	MemoryContext context;		/* that lives as long as the scan */
	BlockNumber count;
	BlockNumber block_pages;
	uint32		parts;			/* blocks a page; one, or block_pages is */
	bool		in_order;		/* blocks come as they are stored */
	bool		foretells;		/* the system is told of blocks ahead; not where the table's space has no concurrent reads */
	uint64		blocks_read;
	uint64	   *loaded;			/* counts the pages whose rows have been begun, of all tables that are read together */
	HeapScanDesc scan;
	HeapTupleData tuple;
	int			line;			/* the next of the page's visible rows, and the end of those wanted */
	int			line_end;
	const uint32 *draws;		/* the blocks to read, and how many of them have been begun */
	uint32		draw_count;
	uint32		drawn;
	uint32		foretold;
	uint32		taken;			/* pages that came */
	BlockNumber page;
	BlockNumber page_end;
#if PG_VERSION_NUM >= 170000
	ReadStream *stream;
#endif
} Pages;

extern uint32 pages_blocks(const Pages *pages);
extern void pages_open(Pages *pages, const uint32 *draws, uint32 count);
extern void pages_foretell(Pages *pages, uint32 block);
extern uint32 pages_foresight(const Pages *pages);
extern bool pages_next(Pages *pages, TupleTableSlot *slot);
extern void pages_close(Pages *pages);

#endif							/* PENSTOCK_PAGES_H */
