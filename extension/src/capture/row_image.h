/*-------------------------------------------------------------------------
 *
 * row_image.h
 *	  A row as it travels: the heap's own bytes.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#ifndef ONETRIP_ROW_IMAGE_H
#define ONETRIP_ROW_IMAGE_H

#include "capture/rel_info.h"
#include "capture/stored_type.h"

#include "access/htup.h"
#include "access/tupdesc.h"

/*
 * A value that is not among the row's bytes: one that was out of line, or a
 * compressed one that contains OIDs.
 */
typedef struct OtPart
{
	uint16		column;			/* from 0 */
	bool		out_of_line;	/* it was, where the row was captured */
	char		compress;		/* method to compress it with again; '\0': do not */
	struct varlena *value;
	OtNames		names;
} OtPart;

/* Ready to be written into a write set. */
typedef struct OtRowImage
{
	HeapTuple	tuple;			/* null bitmap and bytes */
	OtNames		names;			/* offsets count from the start of the data */
	OtPart	   *parts;
	int			nparts;
} OtRowImage;

/* Read from a write set. */
typedef struct OtRowRead
{
	HeapTuple	tuple;			/* parts are null in it */
	OtPart	   *parts;
	int			nparts;
	bool		out_of_line;	/* some part is */
} OtRowRead;

extern void ot_row_image_of_tuple(OtRowImage *image, OtRelInfo *info, TupleDesc desc,
								  HeapTuple stored);
extern void ot_row_image_of_values(OtRowImage *image, OtRelInfo *info, TupleDesc desc,
								   Datum *values, bool *nulls);
extern void ot_row_image_put(StringInfo ops, OtRowImage *image, int natts);

extern void ot_row_read(OtReader *r, OtRelInfo *info, TupleDesc desc, OtRowRead *row);
extern void ot_row_deform(OtRowRead *row, TupleDesc desc, Datum *values, bool *nulls);

#endif							/* ONETRIP_ROW_IMAGE_H */
