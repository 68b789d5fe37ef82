/*
 * A wall clock that can be set back and forth for one process and its
 * children, without touching the machine's: a library to preload, which adds
 * an offset in nanoseconds to the real time.  The offset is an int64 in the
 * file that ONETRIP_CLOCK_OFFSET names, so that it can be changed while the
 * process runs.
 *
 * Monotonic clocks stay as they are, because setting a real wall clock does
 * not change them either.
 *
 * With ONETRIP_NO_SYNC set, fsync(), fdatasync() and sync_file_range() do
 * nothing and report success, as a disk that lies would: this shows whether
 * the torture notices.  With ONETRIP_SLOW_SYNC_US set, fsync() and fdatasync()
 * take so many microseconds longer, as on a disk that is far away.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_ns;
static int	(*real_clock_gettime) (clockid_t, struct timespec *);

__attribute__((constructor))
static void
set_up(void)
{
	const char *path = getenv("ONETRIP_CLOCK_OFFSET");
	int			fd;
	void	   *page;

	real_clock_gettime = (int (*) (clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
	if (path == NULL || (fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
		return;
	page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (page != MAP_FAILED)
		offset_ns = page;
}

int
clock_gettime(clockid_t clock, struct timespec *now)
{
	int			result;
	int64_t		ns;

	if (real_clock_gettime == NULL)
		set_up();
	result = real_clock_gettime(clock, now);
	if (result != 0 || offset_ns == NULL || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
		return result;
	ns = now->tv_nsec + *offset_ns % 1000000000;
	now->tv_sec += *offset_ns / 1000000000;
	if (ns < 0)
	{
		ns += 1000000000;
		now->tv_sec--;
	}
	else if (ns >= 1000000000)
	{
		ns -= 1000000000;
		now->tv_sec++;
	}
	now->tv_nsec = ns;
	return 0;
}

int
gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec precise;

	(void) zone;
	if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
		return -1;
	now->tv_sec = precise.tv_sec;
	now->tv_usec = precise.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *seconds)
{
	struct timespec precise;

	if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
		return -1;
	if (seconds != NULL)
		*seconds = precise.tv_sec;
	return precise.tv_sec;
}

static int
no_sync(void)
{
	return getenv("ONETRIP_NO_SYNC") != NULL;
}

static int
slowly(int result)
{
	const char *text = getenv("ONETRIP_SLOW_SYNC_US");
	long		us = text == NULL ? 0 : atol(text);
	struct timespec rest = {us / 1000000, us % 1000000 * 1000};

	if (us > 0 && result == 0)
		nanosleep(&rest, NULL);
	return result;
}

int
fsync(int fd)
{
	return no_sync() ? 0 : slowly((int) syscall(SYS_fsync, fd));
}

int
fdatasync(int fd)
{
	return no_sync() ? 0 : slowly((int) syscall(SYS_fdatasync, fd));
}

int
sync_file_range(int fd, off64_t offset, off64_t bytes, unsigned int flags)
{
	return no_sync() ? 0 : (int) syscall(SYS_sync_file_range, fd, offset, bytes, flags);
}
