/*-------------------------------------------------------------------------
 *
 * stop_point.c
 *	  Stop points, in builds for tests only.
 *
 * A session stops at a point if the data folder contains a file
 * onetrip.stop/<application_name>.<point>, with the session's application_name.
 * The file says what the session does there:
 *
 *	wait			wait until the file is gone
 *	error			raise an ERROR
 *	die				end the process at once, as kill -9 would
 *
 * It may continue with " after N": then the first N hits pass.  Each hit adds
 * a line with the process id to <file>.hits, from which a test knows that a
 * session has arrived.
 *
 * A stop point allocates nothing and checks for no interrupts: what a signal
 * does to the code at the point is what the test wants to see.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#ifdef ONETRIP_STOP_POINTS

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/pmsignal.h"
#include "utils/guc.h"

#define POLL_US 2000
/* A test that has died must not leave a server that hangs. */
#define POLLS_MAX (120 * 1000 * 1000 / POLL_US)

/* Reads what the file says into `order`; false: there is no file. */
static bool
stop_point_read_order(const char *point, char *path, char *order, size_t size)
{
	ssize_t		len;
	int			fd;

	snprintf(path, MAXPGPATH, "onetrip.stop/%s.%s",
			 application_name ? application_name : "", point);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	len = read(fd, order, size - 1);
	close(fd);
	order[Max(len, 0)] = '\0';
	return true;
}

/* Counts this hit; returns its number, from 1. */
static long
stop_point_count_hit(const char *path)
{
	char		hits[MAXPGPATH + 8];
	char		line[16];
	struct stat after;
	int			len = snprintf(line, sizeof(line), "%10d\n", MyProcPid);
	int			fd;

	snprintf(hits, sizeof(hits), "%s.hits", path);
	fd = open(hits, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, line, len) != len || fstat(fd, &after) != 0)
		elog(PANIC, "could not count a stop point in \"%s\": %m", hits);
	close(fd);
	return (long) (after.st_size / len);
}

bool
ot_stop_wanted(const char *point)
{
	char		path[MAXPGPATH];
	char		order[64];

	return stop_point_read_order(point, path, order, sizeof(order));
}

void
ot_stop_point(const char *point)
{
	char		path[MAXPGPATH];
	char		order[64];
	char	   *after;

	if (!stop_point_read_order(point, path, order, sizeof(order)))
		return;
	after = strstr(order, " after ");
	if (stop_point_count_hit(path) <= (after ? atol(after + 7) : 0))
		return;
	if (strncmp(order, "die", 3) == 0)
		_exit(137);
	if (strncmp(order, "error", 5) == 0)
		elog(ERROR, "stop point \"%s\"", point);
	for (int i = 0; i < POLLS_MAX && access(path, F_OK) == 0; i++)
	{
		if (!PostmasterIsAlive())
			_exit(1);
		pg_usleep(POLL_US);
	}
}

#endif							/* ONETRIP_STOP_POINTS */
