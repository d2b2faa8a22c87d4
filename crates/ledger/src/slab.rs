//! Things by number: a number is given again once its thing is gone.

/// A list with holes.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, item: T) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.items.push(None);
            u32::try_from(self.items.len() - 1).expect("fewer than four billion of anything")
        });
        self.items[number as usize] = Some(item);
        number
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let item = self.items[number as usize].take();
        if item.is_some() {
            self.free.push(number);
        }
        item
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.items.get(number as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.items.get_mut(number as usize)?.as_mut()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.items.iter().flatten()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut().flatten()
    }

    /// The numbers of what is there.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        let numbered = self.items.iter().enumerate();
        numbered.filter(|(_, item)| item.is_some()).map(|(number, _)| number as u32).collect()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.items.len() == self.free.len()
    }
}

/// What is looked up by a number that is known to be good.
impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, number: u32) -> &T {
        self.get(number).expect("whoever has the number keeps the thing")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        self.get_mut(number).expect("whoever has the number keeps the thing")
    }
}
