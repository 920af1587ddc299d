#include "textflag.h"

// func prefetch(block *[16]uint64)
TEXT ·prefetch(SB), NOSPLIT|NOFRAME, $0-8
	MOVQ block+0(FP), AX
	PREFETCHT0 (AX)
	PREFETCHT0 64(AX)
	RET
