//! Pointers as they cross the boundary. By the contract of the verbs interface they are valid, or
//! null where that is allowed; each wrapper says what it takes on trust.

/// A pointer that a call reads through.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Source<T>(*const T);

impl<T: Copy> Source<T> {
    /// The object.
    pub fn get(self) -> T {
        // SAFETY: the caller passes a pointer to a `T`, by the contract of the interface.
        unsafe { self.0.read_unaligned() }
    }

    /// The element at an index of an array.
    pub fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// What is there, unless the pointer is null.
    pub fn non_null(self) -> Option<T> {
        (!self.0.is_null()).then(|| self.get())
    }

    /// As an address.
    pub fn address(self) -> u64 {
        self.0 as u64
    }

    /// What is at an address.
    pub fn from_address(address: u64) -> Self {
        Self(address as *const T)
    }
}

/// A structure of the kernel's interface of which the caller has so many bytes; the rest is zero.
/// `T` has integers alone.
pub(super) fn beginning<T: Copy>(address: u64, bytes: usize) -> T {
    let mut whole = std::mem::MaybeUninit::<T>::zeroed();
    let length = bytes.min(size_of::<T>());
    // SAFETY: the caller passes so many bytes, by the contract of the interface; `whole` has room
    // for them, and all bits are fine for integers.
    unsafe {
        std::ptr::copy_nonoverlapping(address as *const u8, whole.as_mut_ptr().cast(), length);
        whole.assume_init()
    }
}

/// Writes as much of a structure as the caller has room for.
pub(super) fn set_beginning<T: Copy>(address: u64, bytes: usize, value: &T) {
    let length = bytes.min(size_of::<T>());
    // SAFETY: the caller passes room for so many bytes, by the contract of the interface.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), address as *mut u8, length);
    }
}

/// A pointer that a call writes through.
#[repr(transparent)]
pub(super) struct Target<T>(*mut T);

impl<T> Clone for Target<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Target<T> {}

impl<T> Target<T> {
    /// Writes, unless the pointer is null.
    pub fn set(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller passes a pointer to room for a `T`, by the contract of the
            // interface.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// The element at an index of an array.
    pub fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// As an address.
    pub fn address(self) -> u64 {
        self.0 as u64
    }

    /// The place at an address.
    pub fn from_address(address: u64) -> Self {
        Self(address as *mut T)
    }

    /// Reads what is there.
    pub fn get(self) -> T
    where
        T: Copy,
    {
        // SAFETY: as in `set`; the caller has filled the place.
        unsafe { self.0.read_unaligned() }
    }
}

/// An object that this library has made and handed out; null only where it refused to make one.
#[repr(transparent)]
pub(super) struct Object<T>(*mut T);

impl<T> Clone for Object<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Object<T> {}

impl<T> Object<T> {
    /// Hands an object out.
    pub fn give(value: Box<T>) -> Self {
        Self(Box::into_raw(value))
    }

    /// No object.
    pub const NONE: Self = Self(std::ptr::null_mut());

    /// Is there none?
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The object, unless there is none.
    pub fn non_null(self) -> Option<Self> {
        (!self.is_null()).then_some(self)
    }

    /// The object. Objects keep what callers write in cells.
    pub fn get<'a>(self) -> &'a T {
        // SAFETY: the caller passes what `give` gave and `take` has not taken; that nobody destroys
        // an object while it is in use is the program's part of the contract.
        unsafe { &*self.0 }
    }

    /// Takes an object back: the caller may not use it any more.
    pub fn take(self) -> Box<T> {
        // SAFETY: the caller destroys what `give` gave, once, by the contract of the interface.
        unsafe { Box::from_raw(self.0) }
    }

    /// What callers know the object by.
    pub fn address(self) -> u64 {
        self.0 as u64
    }

    /// The object at an address.
    pub fn from_address(address: u64) -> Self {
        Self(address as *mut T)
    }
}

/// Sets `errno`.
pub(super) fn set_errno(errno: i32) {
    // SAFETY: the C library gives each thread its own place.
    unsafe { *libc::__errno_location() = errno };
}
